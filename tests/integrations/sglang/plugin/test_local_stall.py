"""Stalls, measured from launches and results as either event loop produces them."""

import pytest

from kvferry.integrations.sglang.plugin.localprefill.stall import StallMeter, Step


def test_one_after_the_other() -> None:
    meter = StallMeter()
    meter.launched(1.0, 0, 3)
    assert meter.ended(1.1, prefill=False) == Step(0, 3, pytest.approx(0.1))
    meter.launched(1.2, 128, 3)
    assert meter.ended(1.5, prefill=True) == Step(128, 3, pytest.approx(0.3))
    assert (meter.stalls, meter.stalled_tokens, meter.stall_s) == (1, 128, pytest.approx(0.3))


def test_overlapped_a_batch_takes_from_the_end_of_the_one_before() -> None:
    meter = StallMeter()
    meter.launched(1.0, 0, 2)
    meter.launched(1.01, 256, 2)
    assert meter.ended(1.1, prefill=False) == Step(0, 2, pytest.approx(0.1))
    meter.launched(1.11, 0, 2)
    assert meter.ended(1.4, prefill=True) == Step(256, 2, pytest.approx(0.3))
    assert meter.ended(1.5, prefill=False) == Step(0, 2, pytest.approx(0.1))
    assert meter.stall_s == pytest.approx(0.3)


def test_a_chunk_that_nobody_waits_for_is_no_stall() -> None:
    meter = StallMeter()
    meter.launched(1.0, 512, 0)
    assert meter.ended(1.5, prefill=True) == Step(512, 0, pytest.approx(0.5))
    assert (meter.stalls, meter.stalled_tokens, meter.stall_s) == (0, 0, 0.0)


def test_a_result_without_its_launch_is_not_guessed_at() -> None:
    meter = StallMeter()
    assert meter.ended(1.0, prefill=True) is None
    meter.launched(1.1, 64, 1)
    meter.launched(1.2, 0, 1)
    assert meter.ended(1.3, prefill=False) is None
    assert meter.ended(1.4, prefill=True) is None
    meter.launched(2.0, 64, 1)
    assert meter.ended(2.2, prefill=True) == Step(64, 1, pytest.approx(0.2))

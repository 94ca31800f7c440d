import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.integrations.sglang.plugin.wire import LocalLoad
from kvferry.integrations.sglang.telemetry_stalls import MEMORY_S, StallMeter


def told(tokens: int, stall_s: float) -> LocalLoad:
    return LocalLoad(stalls=1, stalled_tokens=tokens, stall_s=stall_s)


def test_nothing_is_known_before_anything_stalled() -> None:
    assert StallMeter().read("a", LocalLoad(queue=3), 1.0) == 0.0


def test_the_ratio_is_of_what_both_sums_gained() -> None:
    meter = StallMeter()
    assert meter.read("a", told(1000, 0.1), 1.0) == pytest.approx(1e-4)
    assert meter.read("a", told(1000, 0.1), 2.0) == pytest.approx(1e-4)
    assert meter.read("a", told(2000, 0.4), 2.0) == pytest.approx(4e-4 / 2, rel=0.01)


def test_a_worker_that_changes_is_believed_within_its_memory() -> None:
    meter = StallMeter()
    meter.read("a", told(1000, 0.1), 0.0)
    assert meter.read("a", told(2000, 0.3), 10 * MEMORY_S) == pytest.approx(2e-4, rel=1e-3)


def test_an_idle_worker_keeps_its_ratio_for_ever() -> None:
    meter = StallMeter()
    meter.read("a", told(1000, 0.1), 0.0)
    assert meter.read("a", told(1000, 0.1), 1e6) == pytest.approx(1e-4)


def test_ranks_of_one_worker_are_weighted_by_their_tokens() -> None:
    meter = StallMeter()
    meter.read("a", told(3000, 0.3), 0.0)
    assert meter.read("b", told(1000, 0.5), 0.0) == pytest.approx(0.8 / 4000)


def test_sums_that_fall_begin_anew() -> None:
    meter = StallMeter()
    meter.read("a", told(1000, 0.1), 0.0)
    assert meter.read("a", told(500, 0.1), 0.0) == pytest.approx(0.2 / 1500)


@given(st.lists(st.tuples(st.integers(0, 5000), st.floats(0, 1), st.floats(0, 500)), max_size=20))
def test_a_ratio_is_never_outside_of_what_was_seen(steps: list[tuple[int, float, float]]) -> None:
    meter, tokens, stall_s, now_s = StallMeter(), 0, 0.0, 0.0
    seen = [0.0]
    for more, stall, later in steps:
        tokens, stall_s, now_s = tokens + more, stall_s + stall * (more > 0), now_s + later
        if more:
            seen.append(stall / more)
        ratio = meter.read("a", told(tokens, stall_s), now_s)
        assert -1e-9 <= ratio <= max(seen) * (1 + 1e-6) + 1e-9

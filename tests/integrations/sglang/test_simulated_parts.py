"""The parts of simulated workers that need no server: their text, their lengths, their time."""

import asyncio
import json
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.integrations.sglang.simulated import filler
from kvferry.integrations.sglang.simulated.lengths import drawn_tokens
from kvferry.integrations.sglang.simulated.options import SimulationOptions
from kvferry.integrations.sglang.simulated.pump import Pump
from kvferry.models.simulator.events import Events

LENGTH = st.integers(0, 300)


@given(LENGTH, LENGTH)
def test_pieces_of_the_text_make_the_whole(first: int, more: int) -> None:
    assert filler.text(0, first) + filler.text(first, first + more) == filler.text(0, first + more)
    assert len(filler.text(0, first).split()) == first


@given(LENGTH)
def test_there_is_one_id_a_token_and_one_token_an_id(count: int) -> None:
    ids = json.loads(bytes(filler.token_ids(count)))
    assert len(ids) == count
    assert set(ids) <= set(range(filler.FIRST_ID, filler.FIRST_ID + len(filler.WORDS)))


def test_lengths_have_the_median_and_the_spread_that_were_asked_for() -> None:
    drawn = [drawn_tokens(f"prompt {place}".encode(), 1, 200.0, 0.5) for place in range(2000)]
    assert statistics.median(drawn) == pytest.approx(200, rel=0.1)
    logs = statistics.quantiles(drawn, n=100)
    assert logs[83] / logs[15] == pytest.approx(2.718, rel=0.15), "one sigma to either side"
    assert drawn == [drawn_tokens(f"prompt {place}".encode(), 1, 200.0, 0.5) for place in range(2000)]
    assert drawn != [drawn_tokens(f"prompt {place}".encode(), 2, 200.0, 0.5) for place in range(2000)]


async def test_a_pump_keeps_the_order_and_goes_on_after_a_failure(
    caplog: pytest.LogCaptureFixture, eventually: Any
) -> None:
    pump, seen = Pump(Events(), 1000.0), list[object]()

    def fail() -> None:
        raise RuntimeError("told to fail")

    with pump:
        for place in (3, 1, 2):
            pump.events.at(pump.events.now_s + 5.0 * place, seen.append, place)
        pump.events.at(pump.events.now_s + 7.0, fail)
    await eventually(lambda: len(seen) == 3)
    assert seen == [1, 2, 3]
    assert "told to fail" in caplog.text
    pump.stop()


async def test_what_is_asked_for_earlier_is_not_kept_waiting_by_what_is_later() -> None:
    pump, seen = Pump(Events()), asyncio.Event()
    with pump:
        pump.events.at(pump.events.now_s + 1000.0, lambda: None)
    with pump:
        pump.events.at(pump.events.now_s + 0.01, seen.set)
    await asyncio.wait_for(seen.wait(), 10.0)
    pump.stop()


async def test_nothing_happens_before_its_time(eventually: Any) -> None:
    pump, early = Pump(Events(), 50.0), list[float]()
    with pump:
        for place in range(100):
            due_s = pump.events.now_s + 0.3 * place
            pump.events.at(due_s, lambda due_s=due_s: early.append(due_s - pump.now_s))
    await eventually(lambda: len(early) == 100)
    assert max(early) <= 1e-9
    pump.stop()


@pytest.mark.parametrize(
    "wrong", [{"time_scale": 0.0}, {"half_pair_timeout_s": -1.0}, {"output_sigma": -1.0}]
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SimulationOptions(**wrong)  # type: ignore[arg-type]

"""Calls in the order of their time."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.simulator.events import Event, Events

TIMES = st.lists(st.integers(0, 5).map(float), max_size=20)


@given(TIMES)
def test_time_never_runs_back_and_equal_times_keep_their_order(times_s: list[float]) -> None:
    events = Events()
    made: list[tuple[float, int]] = []
    for place, time_s in enumerate(times_s):
        events.at(time_s, lambda place=place: made.append((events.now_s, place)))
    events.run()
    assert made == sorted((time_s, place) for place, time_s in enumerate(times_s))
    assert events.done == len(times_s)
    assert events.next_s is None


@pytest.mark.parametrize("time_s", [0.9, -math.inf, math.nan])
def test_the_past_cannot_be_asked_for(time_s: float) -> None:
    events = Events(now_s=1.0)
    with pytest.raises(ValueError, match="has passed"):
        events.at(time_s, print)
    assert events.next_s is None


@given(TIMES, st.sets(st.integers(0, 19)), st.floats(0, 6))
def test_cancelled_calls_are_not_made_and_later_ones_wait(
    times_s: list[float], dropped: set[int], until_s: float
) -> None:
    events = Events()
    made: list[int] = []
    asked: list[Event] = [events.at(time_s, made.append, place) for place, time_s in enumerate(times_s)]
    for place in dropped & set(range(len(times_s))):
        asked[place].cancel()
    events.run(until_s)
    kept = sorted((time_s, place) for place, time_s in enumerate(times_s) if place not in dropped)
    assert made == [place for time_s, place in kept if time_s <= until_s]
    assert events.now_s == until_s
    assert events.next_s == min((time_s for time_s, _ in kept if time_s > until_s), default=None)
    events.run(until_s / 2)
    assert events.now_s == until_s


def test_a_call_may_ask_for_another_at_once_and_stop() -> None:
    events = Events()
    made: list[str] = []

    def first() -> None:
        events.at(events.now_s, made.append, "second")
        events.at(events.now_s, events.stop)
        events.at(events.now_s, made.append, "after")

    events.at(2.0, first)
    events.run()
    assert made == ["second"]
    assert events.now_s == 2.0
    events.run()
    assert made == ["second", "after"]

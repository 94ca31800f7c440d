"""What is counted over the requests that ended last, and how routers' counts add up."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.health.cluster import total
from kvferry.models.health.seen import Pair, Seen
from kvferry.models.health.snapshot import MOST_BYTES, Snapshot, read_snapshot
from kvferry.models.health.window import WINDOW, LearningWindow

NAMES = ("one", "two")


def window(*seen: Seen) -> LearningWindow:
    found = LearningWindow(NAMES)
    for one in seen:
        found.decided()
        found.ended(one)
    return found


def took(actual_s: float, p50_s: float = 0.1, p90_s: float = 0.2, **told: Any) -> Seen:
    return Seen("split", terms={"ttft": Pair(p50_s, p90_s, actual_s)}, **told)


def test_coverage_error_and_drift_are_those_of_late() -> None:
    half = [took(0.1)] * 300 + [took(0.4)] * 300
    term = window(*half).snapshot().terms["ttft/split"]
    assert (term.samples, term.window, term.covered) == (600, 600, 300)
    assert term.off == pytest.approx(math.log(0.401 / 0.101), abs=1e-3)
    assert term.drift == pytest.approx(term.off, abs=1e-3)
    later = window(*half, *[took(0.4)] * WINDOW).snapshot().terms["ttft/split"]
    assert (later.samples, later.window, later.covered) == (1600, WINDOW, 0)
    assert later.drift == 0.0


def test_what_takes_microseconds_is_not_far_off() -> None:
    term = window(*[took(4e-5, 1e-5)] * 60).snapshot().terms["ttft/split"]
    assert abs(term.off) < 0.05


def test_shares_and_reasons_are_of_the_window() -> None:
    told = [
        took(0.1, reason="stale_load", safe_rule=True),
        took(0.1, learned=True, fallback="x is out", missing=("unheard",)),
        Seen("colocated", rescued=True),
        Seen("colocated", failed=True, believed_cached_tokens=64),
    ]
    snapshot = window(*told).snapshot()
    assert (snapshot.window, snapshot.split, snapshot.safe, snapshot.learned) == (4, 2, 1, 1)
    assert (snapshot.rescued, snapshot.failed, snapshot.believed_cached_tokens) == (1, 1, 64)
    assert (snapshot.fallbacks, snapshot.missing) == ({"x is out": 1}, {"unheard": 1})
    assert snapshot.share(snapshot.safe) == 0.25


def test_an_input_that_never_came_differs_from_one_that_never_changed() -> None:
    told = [took(0.1, features=(1.0, float(n)), inputs={"a": None, "b": 5.0}) for n in range(5)]
    snapshot = window(*told, Seen("split")).snapshot()
    assert (snapshot.inputs["a"].asked, snapshot.inputs["a"].arrived) == (5, 0)
    assert snapshot.inputs["b"].constant
    assert snapshot.inputs["b"].total == 25.0
    assert snapshot.features["one"].constant
    assert not snapshot.features["two"].constant
    assert (snapshot.features["two"].asked, snapshot.features["two"].arrived) == (6, 5)
    assert not window(Seen("split")).snapshot().features["one"].constant


def test_nothing_seen_is_a_snapshot_too() -> None:
    assert LearningWindow(NAMES).snapshot() == Snapshot()
    assert total([]) == Snapshot()


@given(st.lists(st.tuples(st.floats(), st.floats(), st.floats()), max_size=20))
def test_what_was_seen_can_be_told(times: list[tuple[float, float, float]]) -> None:
    snapshot = window(*(took(*pair, features=pair[:2]) for pair in times)).snapshot()
    assert read_snapshot(msgspec.json.encode(snapshot)) == snapshot


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
def test_routers_add_up(one: int, two: int, three: int) -> None:
    seen = [took(0.01 * n, reason=str(n % 3), inputs={"a": n if n % 2 else None}) for n in range(90)]
    parts = [seen[:one], seen[one : one + two], seen[one + two : one + two + three]]
    apart = total([window(*part).snapshot() for part in parts])
    whole = window(*seen[: one + two + three]).snapshot()
    kept = ("decided", "ended", "window", "split", "safe", "reasons", "inputs")
    assert all(getattr(apart, name) == getattr(whole, name) for name in kept)
    for name, term in whole.terms.items():
        assert apart.terms[name].samples == term.samples
        assert apart.terms[name].covered == term.covered


@pytest.mark.parametrize(
    "told",
    [
        b"", b"null", b"\xff", b"{}" + b" " * MOST_BYTES, b'{"schema":"kvferry.learning.v2"}',
        b'{"window":-1}', b'{"terms":{"x":{"off":1e999}}}', b'{"reasons":{"x":1.5}}',
    ],
)  # fmt: skip
def test_what_is_no_snapshot_is_refused(told: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_snapshot(told)

"""What is in flight: exact at every moment, nothing left at the end, and never anything negative."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.models.book import HISTORY_S, PROMISED, Book, Entry, Totals

WORKERS = ("a", "b", "c")
steps = st.lists(
    st.tuples(
        st.sampled_from(["start", "first_token", "end"]),
        st.integers(0, 9),
        st.sampled_from(WORKERS),
        st.sampled_from(WORKERS),
        st.integers(1, 10**7),
        st.integers(1, 64),
        st.floats(0.0, 5.0),
    ),
    max_size=80,
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def entry(clock: Clock, pre: str = "a", dec: str = "b", tokens: int = 100, sequences: int = 1) -> Entry:
    path = "" if pre == dec else f"{pre}>{dec}"
    return Entry(pre, dec, path, tokens, sequences, tokens * 2, start_s=clock())


def values(totals: Totals) -> tuple[float, float, float]:
    return totals.prefill_tokens, totals.decodes, totals.context_tokens


@given(steps)
def test_any_order_of_events_ends_at_zero_and_is_never_negative(events: list[Any]) -> None:
    clock = Clock()
    book = Book(clock)
    known: set[str] = set()
    for kind, number, pre, dec, tokens, sequences, wait_s in events:
        clock.now_s += wait_s
        key = str(number)
        if kind == "start" and key not in known:
            known.add(key)
            book.start(key, entry(clock, pre, dec, tokens, sequences))
        elif kind == "first_token":
            book.first_token(key)
        elif kind == "end":
            book.end(key)
            known.discard(key)
        assert len(book) == len(known)
        assert all(value >= 0.0 for totals in book.now.values() for value in values(totals))
        assert all(moves >= 0 for moves in book.moves.values())
        for worker in WORKERS:
            assert values(book.at(clock.now_s, worker)) == values(book.now.get(worker, Totals()))
    for key in known:
        book.end(key)
    assert all(values(totals) == (0.0, 0.0, 0.0) for totals in book.now.values())
    assert not any(book.moves.values())
    assert len(book) == 0


def test_a_promise_counts_half_until_its_first_token() -> None:
    clock = Clock()
    book = Book(clock)
    book.start("k", entry(clock, sequences=4))
    assert values(book.now["b"]) == (0.0, 4 * PROMISED, 200 * PROMISED)
    assert values(book.now["a"]) == (100.0, 0.0, 0.0)
    assert book.moves == {"a>b": 1}
    book.first_token("k")
    book.first_token("k")
    assert values(book.now["b"]) == (0.0, 4.0, 200.0)
    assert values(book.now["a"]) == (0.0, 0.0, 0.0)
    assert book.moves == {"a>b": 0}


def test_the_past_is_remembered_for_a_while_and_then_forgotten() -> None:
    clock = Clock()
    book = Book(clock)
    book.start("k", entry(clock))
    clock.now_s = 101.0
    book.first_token("k")
    clock.now_s = 102.0
    book.end("k")
    assert values(book.at(100.5, "a")) == (100.0, 0.0, 0.0)
    assert values(book.at(101.5, "b")) == (0.0, 1.0, 200.0)
    assert values(book.at(99.0, "a")) == (0.0, 0.0, 0.0)
    assert values(book.at(102.0, "b")) == (0.0, 0.0, 0.0)
    clock.now_s += HISTORY_S + 1.0
    book.start("j", entry(clock))
    book.end("j")
    assert len(book._ended) == 1


def test_arrivals_average_to_the_rate_and_fade() -> None:
    clock = Clock()
    book = Book(clock)
    for number in range(1000):
        clock.now_s += 0.1
        book.start(str(number), entry(clock, "a", "a"))
        book.end(str(number))
    assert book.arrivals_per_s("a") == pytest.approx(10.0, rel=0.05)
    assert book.arrivals_per_s("b") == 0.0
    before = book.arrivals_per_s("a")
    clock.now_s += 10.0
    assert book.arrivals_per_s("a") == pytest.approx(before / math.e)


def test_a_backlog_is_what_was_predicted_less_what_must_be_done() -> None:
    clock = Clock()
    book = Book(clock)
    for key in ("first", "second"):
        book.start(key, Entry("a", "a", "", 100, 1, 200, start_s=clock(), prefill_s=2.0))
    assert book.backlog_s("a") == pytest.approx(4.0)
    clock.now_s += 1.5
    assert book.backlog_s("a") == pytest.approx(2.5)
    clock.now_s += 5.0  # the first is late: the second has not begun
    assert book.backlog_s("a") == pytest.approx(2.0)
    book.first_token("first")
    clock.now_s += 0.5
    assert book.backlog_s("a") == pytest.approx(1.5)
    book.end("second")
    assert book.backlog_s("a") == pytest.approx(0.0)
    assert book.backlog_s("nobody") == 0.0


def test_a_steady_stream_of_prefills_takes_its_share_of_time() -> None:
    clock = Clock()
    book = Book(clock)
    for number in range(400):
        book.start(str(number), Entry("a", "a", "", 100, 1, 200, start_s=clock(), prefill_s=0.06))
        clock.now_s += 0.2
    assert book.prefill_share("a") == pytest.approx(0.3, rel=0.03)
    clock.now_s += 100.0
    assert book.prefill_share("a") < 0.001
    assert book.prefill_share("b") == 0.0

"""Moves over shared NICs: none carries more than it can, all that is offered arrives."""

from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry.models.simulator.events import Events
from kvferry.models.simulator.network import Move, Nic, reshare

FAST = 1e9


def send(
    events: Events, source: Nic, sink: Nic, size: float, log: dict[int, float], key: int, **offer: Any
) -> Move:
    move = Move(events, source, sink, 0.5, lambda: log.setdefault(key, events.now_s))
    move.offer(size, last=True, **offer)
    return move


def test_a_single_move_takes_its_bytes_over_the_slower_nic() -> None:
    events, log = Events(), dict[int, float]()
    move = send(events, Nic("a", FAST), Nic("b", FAST / 4), 2e9, log, 0)
    events.run()
    assert log == {0: pytest.approx(8.0 + 0.5)}
    assert move.busy_s == pytest.approx(8.0)
    assert move.sent_bytes == 2e9


def test_descriptors_hold_the_nic_as_bytes_do_and_are_not_sent() -> None:
    events, log = Events(), dict[int, float]()
    move = send(events, Nic("a", FAST), Nic("b", FAST), 1e9, log, 0, posting_s=0.25)
    events.run()
    assert log == {0: pytest.approx(1.25 + 0.5)}
    assert move.sent_bytes == 1e9


def test_nothing_to_send_is_done_at_once() -> None:
    events, log = Events(), dict[int, float]()
    send(events, Nic("a", FAST), Nic("b", FAST), 0.0, log, 0)
    events.run()
    assert log == {0: 0.5}


def test_two_moves_share_and_the_second_speeds_up_when_the_first_is_done() -> None:
    events, log = Events(), dict[int, float]()
    source = Nic("a", FAST)
    for key, size in enumerate((1e9, 3e9)):
        send(events, source, Nic("b", FAST), size, log, key)
    events.run()
    assert log == {0: pytest.approx(2.0 + 0.5), 1: pytest.approx(4.0 + 0.5)}


def test_bandwidth_that_changes_in_the_middle_counts_from_then_on() -> None:
    events, log = Events(), dict[int, float]()
    source = Nic("a", FAST)
    send(events, source, Nic("b", FAST), 2e9, log, 0)

    def drop() -> None:
        source.bytes_per_s = FAST / 10
        reshare(source)

    events.at(1.0, drop)
    events.run()
    assert log == {0: pytest.approx(1.0 + 10.0 + 0.5)}


def test_a_move_that_was_given_up_makes_way_and_is_never_done() -> None:
    events, log = Events(), dict[int, float]()
    source = Nic("a", FAST)
    gone = send(events, source, Nic("b", FAST), 1e9, log, 0)
    send(events, source, Nic("c", FAST), 1e9, log, 1)
    events.at(1.0, gone.drop)
    events.run()
    assert log == {1: pytest.approx(1.5 + 0.5)}
    assert not source.moving


def test_what_is_offered_in_parts_is_done_after_the_last_of_them() -> None:
    events, log = Events(), dict[int, float]()
    source, sink = Nic("a", FAST), Nic("b", FAST)
    move = Move(events, source, sink, 0.5, lambda: log.setdefault(0, events.now_s))
    events.at(0.0, move.offer, 1e9)
    events.at(3.0, move.offer, 2e9)
    events.at(4.0, partial(move.offer, 0.0, last=True))
    events.run()
    assert log == {0: pytest.approx(5.0 + 0.5)}
    assert move.busy_s == pytest.approx(3.0)
    assert move.sent_bytes == 3e9


FLOW = st.tuples(
    st.floats(0.0, 3.0),  # when
    st.integers(0, 2),  # from
    st.integers(0, 2),  # to
    st.lists(st.floats(0.0, 2e9), min_size=1, max_size=3),  # parts
    st.one_of(st.none(), st.floats(0.0, 3.0)),  # given up after
)
CHANGE = st.tuples(st.floats(0.0, 6.0), st.integers(0, 5), st.floats(0.05, 3.0))


@given(st.lists(FLOW, min_size=1, max_size=8), st.lists(CHANGE, max_size=5))
@settings(max_examples=150)
def test_no_nic_carries_more_than_it_can_and_all_bytes_arrive(
    flows: list[tuple[float, int, int, list[float], float | None]],
    changes: list[tuple[float, int, float]],
) -> None:
    events, log = Events(), dict[int, float]()
    nics = [Nic(f"{place}", FAST) for place in range(6)]
    moves: list[Move] = []
    offered: list[float] = []
    dropped: set[int] = set()

    def drop(key: int) -> None:
        if key not in log:
            moves[key].drop()
            dropped.add(key)

    def change(place: int, factor: float) -> None:
        nics[place].bytes_per_s = FAST * factor
        reshare(nics[place])

    for key, (at_s, source, sink, parts, give_up_s) in enumerate(flows):
        done = partial(lambda key: log.setdefault(key, events.now_s), key)
        move = Move(events, nics[source], nics[3 + sink], 0.0, done)
        moves.append(move)
        offered.append(sum(parts))
        for place, part in enumerate(parts):
            last = place == len(parts) - 1
            if give_up_s is None or 0.3 * place <= give_up_s:
                events.at(at_s + 0.3 * place, partial(move.offer, part, last=last))
        if give_up_s is not None:
            events.at(at_s + give_up_s, drop, key)
    for at_s, place, factor in changes:
        events.at(at_s, change, place, factor)

    carried = [0.0] * 6
    could = [0.0] * 6
    moved = [0.0] * len(moves)
    while (due_s := events.next_s) is not None:
        elapsed_s = due_s - events.now_s
        for place, nic in enumerate(nics):
            rates = sum(move._rate for move in nic.moving)
            assert rates <= nic.bytes_per_s * (1 + 1e-9)
            assert all(move._rate > 0.0 for move in nic.moving)
            carried[place] += rates * elapsed_s
            could[place] += nic.bytes_per_s * elapsed_s
        for key, move in enumerate(moves):
            if move in move.source.moving:
                moved[key] += move._rate * elapsed_s
        before_s = events.now_s
        events.run(due_s)
        assert events.now_s >= before_s
    assert all(mine <= room * (1 + 1e-9) + 1.0 for mine, room in zip(carried, could, strict=True))
    assert not any(nic.moving for nic in nics)
    for key, move in enumerate(moves):
        if key in dropped:
            assert key not in log
            assert moved[key] <= move.sent_bytes + 1.0
        else:
            assert key in log
            assert moved[key] == pytest.approx(offered[key], abs=1.0)
            assert move.sent_bytes == pytest.approx(offered[key])

"""The destination's ledgers: a page is readable only when it is complete, and free only when nobody may write
it; a slot has one user. Each law by a machine that does random things, against sets of names."""

import math

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvferry.integrations.handoff.pages import Pages, PageState
from kvferry.integrations.handoff.slots import MOST_WAITING, Slots
from kvferry.integrations.transports.errors import Refused

COUNT = 12
ALL = frozenset(range(COUNT))
some_pages = st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=6, unique=True)


def array(pages):
    return np.array(sorted(pages), np.int64)


class PagesMachine(RuleBasedStateMachine):
    """`holds`: what may be written although nobody expects it, by writer, and until when."""

    def __init__(self):
        super().__init__()
        self.pages = Pages(COUNT)
        self.now_s = 0.0
        self.arriving: dict[str, frozenset[int]] = {}
        self.readable: set[int] = set()
        self.holds: dict[str, tuple[frozenset[int], float]] = {}
        self.names = 0

    def name(self):
        self.names += 1
        return f"n{self.names}"

    def held(self):
        return frozenset().union(*(pages for pages, until_s in self.holds.values() if until_s > self.now_s))

    def free(self):
        return ALL - frozenset().union(*self.arriving.values()) - self.readable - self.held()

    @rule(pages=some_pages)
    def take(self, pages):
        arrival = self.name()
        if set(pages) <= self.free():
            self.pages.take(arrival, np.array(pages), self.now_s)
            self.arriving[arrival] = frozenset(pages)
        else:
            first = next(page for page in pages if page not in self.free())
            with pytest.raises(Refused, match=f"page {first} is (arriving|readable|quarantined), not free"):
                self.pages.take(arrival, np.array(pages), self.now_s)

    @precondition(lambda self: self.arriving)
    @rule(data=st.data())
    def complete(self, data):
        arrival = data.draw(st.sampled_from(sorted(self.arriving)))
        self.pages.complete(arrival)
        self.readable |= self.arriving.pop(arrival)

    @precondition(lambda self: self.arriving)
    @rule(data=st.data(), timeouts=st.lists(st.sampled_from([0.0, 1.0, 5.0, math.inf]), max_size=3))
    def fail(self, data, timeouts):
        arrival = data.draw(st.sampled_from(sorted(self.arriving)))
        writers = {self.name(): timeout_s for timeout_s in timeouts}
        self.pages.fail(arrival, writers, self.now_s)
        pages = self.arriving.pop(arrival)
        self.holds |= {writer: (pages, self.now_s + timeout_s) for writer, timeout_s in writers.items()}

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def acknowledge(self, data):
        writer = data.draw(st.sampled_from([*sorted(self.holds), "nobody"]))
        self.pages.acknowledge(writer)
        self.holds.pop(writer, None)

    @rule(seconds=st.sampled_from([0.5, 1.0, 4.0]))
    def time_passes(self, seconds):
        self.now_s += seconds

    @rule(pages=some_pages)
    def release(self, pages):
        if set(pages) <= self.readable:
            self.pages.release(np.array(pages))
            self.readable -= set(pages)
        else:
            first = next(page for page in pages if page not in self.readable)
            with pytest.raises(Refused, match=f"page {first} is .*, not readable"):
                self.pages.release(np.array(pages))

    @invariant()
    def every_page_is_in_one_state(self):
        found = {state: self.pages.those(state, self.now_s) for state in PageState}
        assert found == {
            PageState.FREE: self.free(),
            PageState.ARRIVING: frozenset().union(*self.arriving.values()),
            PageState.READABLE: self.readable,
            PageState.QUARANTINED: self.held(),
        }
        assert sum(map(len, found.values())) == COUNT
        assert all(page in found[self.pages.state(page, self.now_s)] for page in ALL)


TestPages = PagesMachine.TestCase
TestPages.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize(
    ("pages", "said"),
    [([0, COUNT], f"page {COUNT} is outside"), ([-1], "page -1 is outside"), ([3, 3], "given twice")],
)
def test_pages_that_are_none(pages, said):
    ledger = Pages(COUNT)
    with pytest.raises(Refused, match=said):
        ledger.take("a", np.array(pages), 0.0)
    assert ledger.those(PageState.FREE, 0.0) == ALL


class SlotsMachine(RuleBasedStateMachine):
    """Holders a to d each want slots under tickets; a holder that was withdrawn does not come back."""

    @initialize(count=st.integers(1, 4))
    def begin(self, count):
        self.count = count
        self.slots = Slots(count)
        self.now_s = 0.0
        self.line: list[tuple[str, int]] = []
        self.leased: dict[tuple[str, int], int] = {}
        self.read: dict[tuple[str, int], int] = {}
        self.quiet: dict[str, tuple[set[int], float]] = {}
        self.holders = [f"h{index}" for index in range(4)]
        self.tickets = 0

    def busy(self):
        held = [slot for slots, until_s in self.quiet.values() if until_s > self.now_s for slot in slots]
        return [*self.leased.values(), *self.read.values(), *held]

    @rule(who=st.integers(0, 3))
    def want(self, who):
        self.tickets += 1
        self.slots.want(self.holders[who], self.tickets)
        self.line.append((self.holders[who], self.tickets))
        with pytest.raises(Refused, match="in use"):
            self.slots.want(self.holders[who], self.tickets)

    @rule()
    def grant(self):
        free = self.count - len(self.busy())
        given = self.slots.grant(self.now_s)
        assert [(lease.holder, lease.ticket) for lease in given] == self.line[:free]
        for lease in given:
            assert lease.slot not in self.busy()
            assert 0 <= lease.slot < self.count
            self.leased[self.line.pop(0)] = lease.slot

    @precondition(lambda self: self.leased)
    @rule(data=st.data())
    def reading(self, data):
        lease = data.draw(st.sampled_from(sorted(self.leased)))
        self.read[lease] = self.leased.pop(lease)
        assert self.slots.read(*lease) == self.read[lease]
        with pytest.raises(Refused, match="has no slot"):
            self.slots.read(*lease)

    @precondition(lambda self: self.read)
    @rule(data=st.data())
    def free(self, data):
        lease = data.draw(st.sampled_from(sorted(self.read)))
        self.slots.free(*lease)
        del self.read[lease]

    @rule(who=st.integers(0, 3), timeout_s=st.sampled_from([1.0, 5.0]))
    def withdraw(self, who, timeout_s):
        holder = self.holders[who]
        self.slots.withdraw(holder, now_s=self.now_s, timeout_s=timeout_s)
        self.line = [each for each in self.line if each[0] != holder]
        mine = [lease for lease in self.leased if lease[0] == holder]
        self.quiet[holder] = ({self.leased.pop(lease) for lease in mine}, self.now_s + timeout_s)
        self.tickets += 1
        self.holders[who] = f"h{who}-{self.tickets}"

    @precondition(lambda self: self.quiet)
    @rule(data=st.data())
    def acknowledge(self, data):
        holder = data.draw(st.sampled_from(sorted(self.quiet)))
        self.slots.acknowledge(holder)
        del self.quiet[holder]

    @rule(seconds=st.sampled_from([0.5, 4.0]))
    def time_passes(self, seconds):
        self.now_s += seconds

    @invariant()
    def a_slot_has_one_user(self):
        if hasattr(self, "slots"):
            assert len(set(self.busy())) == len(self.busy()) <= self.count
            assert self.slots.waiting == bool(self.line)


TestSlots = SlotsMachine.TestCase
TestSlots.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_one_holder_does_not_fill_the_line():
    slots = Slots(1)
    for ticket in range(MOST_WAITING):
        slots.want("a", ticket)
    with pytest.raises(Refused, match="wait for a slot"):
        slots.want("a", MOST_WAITING)
    slots.want("b", 0)

"""The destination's ledger of pages: what is free, arriving, readable or quarantined.

A page is readable only between the completion of its arrival and its release, and free only while nothing
may write it. Pure: the clock is the caller's, and what is over by it is let go when the ledger is asked.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from kvferry.integrations.transports.errors import Refused
from kvferry.integrations.transports.quarantine import Quarantine

__all__ = ["PageState", "Pages"]


class PageState(IntEnum):
    FREE = 0
    ARRIVING = 1
    READABLE = 2
    QUARANTINED = 3


class Pages:
    """`count` pages, free at first. Not thread-safe."""

    def __init__(self, count: int) -> None:
        self._states = np.zeros(count, np.int8)
        self._arriving: dict[str, npt.NDArray[np.int64]] = {}
        self._quarantine = Quarantine()

    def take(self, arrival: str, pages: npt.NDArray[np.int64], now_s: float) -> None:
        """Pages that will be written. Raises `Refused` naming the first that is not free: none is taken."""
        self.expire(now_s)
        if arrival in self._arriving:
            raise Refused(f"{arrival} has its pages already")
        self._check(pages, PageState.FREE)
        self._states[pages] = PageState.ARRIVING
        self._arriving[arrival] = pages.copy()

    def complete(self, arrival: str) -> None:
        """All bytes are there and, where asked, verified: the pages are readable."""
        self._states[self._arriving.pop(arrival)] = PageState.READABLE

    def fail(self, arrival: str, writers: Mapping[str, float], now_s: float) -> None:
        """The arrival is over, its pages are nobody's. Each of `writers` may still write them, until it is
        acknowledged or so many seconds passed; without writers they are free."""
        pages = self._arriving.pop(arrival)
        self._states[pages] = PageState.QUARANTINED if writers else PageState.FREE
        for writer, timeout_s in writers.items():
            self._quarantine.hold(writer, pages.tolist(), now_s=now_s, timeout_s=timeout_s)

    def acknowledge(self, writer: str) -> None:
        """The writer writes no more; one that holds nothing frees nothing."""
        self._free(self._quarantine.acknowledge(writer))

    def expire(self, now_s: float) -> None:
        """Let go of pages whose writers' time is over."""
        self._free(self._quarantine.expire(now_s))

    def release(self, pages: npt.NDArray[np.int64]) -> None:
        """Their owner needs them no more. Raises `Refused`, naming the first that is not readable."""
        self._check(pages, PageState.READABLE)
        self._states[pages] = PageState.FREE

    def state(self, page: int, now_s: float) -> PageState:
        self.expire(now_s)
        return PageState(int(self._states[page]))

    def those(self, state: PageState, now_s: float) -> frozenset[int]:
        """All pages in the state."""
        self.expire(now_s)
        return frozenset(np.flatnonzero(self._states == state).tolist())

    def _free(self, pages: Iterable[int]) -> None:
        self._states[np.fromiter(pages, np.int64)] = PageState.FREE

    def _check(self, pages: npt.NDArray[np.int64], wanted: PageState) -> None:
        outside = (pages < 0) | (pages >= len(self._states))
        if outside.any():
            raise Refused(f"page {pages[outside][0]} is outside a pool of {len(self._states)} pages")
        if len(np.unique(pages)) != len(pages):
            raise Refused("a page is given twice")
        other = self._states[pages] != wanted
        if other.any():
            page = int(pages[other][0])
            state = PageState(int(self._states[page]))
            raise Refused(f"page {page} is {state.name.lower()}, not {wanted.name.lower()}")

"""Destination pages that a failed move may still write: not to be used before the writer is known quiet."""

from collections.abc import Iterable

__all__ = ["Quarantine"]


class Quarantine:
    """Pages held until their writer acknowledged a drain or a time passed.

    A page that several moves may write is free only when every one of them let go of it. Not thread-safe; the
    clock is the caller's.
    """

    __slots__ = ("_holds", "_until_s")

    def __init__(self) -> None:
        self._holds: dict[str, frozenset[int]] = {}
        self._until_s: dict[str, float] = {}

    def hold(self, move: str, pages: Iterable[int], *, now_s: float, timeout_s: float) -> None:
        """Hold the pages of `move` until it is acknowledged or `timeout_s` seconds passed.

        Holding more for the same move adds its pages and never shortens the time.
        """
        self._holds[move] = self._holds.get(move, frozenset()) | frozenset(pages)
        self._until_s[move] = max(self._until_s.get(move, now_s), now_s + timeout_s)

    def acknowledge(self, move: str) -> frozenset[int]:
        """The peer says that nothing of `move` will be written any more; returns the pages free by that.

        A move that is not held (a late or a second acknowledgement) frees nothing.
        """
        pages = self._holds.pop(move, frozenset())
        self._until_s.pop(move, None)
        return pages - self.held

    def expire(self, now_s: float) -> frozenset[int]:
        """Let go of the moves whose time passed; returns the pages free by that."""
        over = [move for move, until_s in self._until_s.items() if until_s <= now_s]
        return frozenset().union(*(self.acknowledge(move) for move in over))

    @property
    def held(self) -> frozenset[int]:
        """Every page that must not be used."""
        return frozenset().union(*self._holds.values())

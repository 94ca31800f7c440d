"""What routers learn together: each from its own samples, each deciding by the sum of all."""

from typing import Protocol


class Evidence(Protocol):
    """One model's evidence, its own and that of other routers kept apart, and summed on use.

    Only its own is ever told to others: hearing the same thing twice changes nothing, and nothing is lost
    when two routers write at once. `restore` and `hear` read what came over the network: ValueError, and no
    change, when that is not what `snapshot` makes. None of these may take more than a few milliseconds.
    """

    name: str

    @property
    def revision(self) -> int:
        """Grows with every sample of its own: unchanged means that there is nothing new to tell."""

    def snapshot(self) -> bytes:
        """Its own evidence as JSON; small (under 256 KiB)."""

    def restore(self, told: bytes) -> None:
        """Its own evidence from before a restart, added to what was learned since."""

    def hear(self, router: str, told: bytes) -> None:
        """The whole evidence of another router, in place of what was heard of it before."""

    def weigh(self, router: str, share: float) -> None:
        """How much another router's samples still count, 0..1; at 0 they are forgotten."""

"""What one handoff took, phase by phase: what the link model and the choice of form learn from."""

from dataclasses import dataclass

from kvferry.models.moves.choose import Form
from kvferry.models.paths.sample import Sample

__all__ = ["HandoffRecord"]


@dataclass(frozen=True, slots=True)
class HandoffRecord:
    """One move that is done, as the source process saw it: all of its rank pairs together.

    `moved_bytes` travelled, in `descriptors` pieces and `batches` submissions; `src_bytes` were read from
    the source's pools and `dst_bytes` are in the destination's (they differ where the dtype changes).
    Of `total_s` (from `Source.send` until the destination said complete) `transport_s` is from submission
    to the end of each batch = waiting in line + `post_s` + `wire_s`. `gather_s`, `convert_s`, `scatter_s` and
    `verify_s` are sums over both sides; staged moves overlap them with the wire, so that they do not add up
    to the total. `convert_s` has all of a first pass that only looks for scales. `registration_s` and
    `first_contact_s` are part of nothing else and 0 but for the first move. `gated`: layers were waited for,
    `total_s` has that too. `concurrency`: most moves of the transport under way, this one counted, when a
    batch of it was submitted.
    """

    src: str
    dst: str
    transport: str
    relation: str
    form: Form
    tokens: int
    moved_bytes: int
    src_bytes: int
    dst_bytes: int
    descriptors: int
    batches: int
    concurrency: int
    registration_s: float
    first_contact_s: float
    post_s: float
    wire_s: float
    transport_s: float
    gather_s: float
    convert_s: float
    scatter_s: float
    verify_s: float
    total_s: float
    gated: bool = False
    verified: bool = False

    @property
    def path(self) -> str:
        """Source, destination and transport in one word, as breakers name them."""
        return f"{self.src}>{self.dst}@{self.transport}"

    def sample(self) -> Sample:
        """The mean batch: where a batch costs alpha + beta * bytes + gamma * descriptors, it fits that line.

        ValueError where nothing moved.
        """
        if not self.batches:
            raise ValueError(f"{self.path}: nothing moved")
        return Sample(
            max(1, round(self.moved_bytes / self.batches)),
            max(1, round(self.descriptors / self.batches)),
            self.transport_s / self.batches,
            self.concurrency,
        )

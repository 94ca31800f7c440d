"""One rank's stream of KV events: what is missing in it, and the blocks that follow from it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from kvferry.integrations.sglang.kvevents_message import (
    AllBlocksCleared,
    Batch,
    BlockRemoved,
    BlockStored,
    on_gpu,
)
from kvferry.models.kv_blocks import HeldBlocks

# Blocks between two breaths of the event loop: about 2 ms.
SLICE = 2048
UNHEARD = "nothing heard yet"


class Step(StrEnum):
    """What a batch is to the stream so far."""

    NEXT = "next"
    OLD = "old"
    GAP = "gap"
    RESTART = "restart"


@dataclass(slots=True, eq=False)
class Feed:
    """Batches carry numbers from 0 up, anew after a restart of the worker.

    `partial` says why the blocks may not be all that the worker holds; empty when they are. Known blocks
    are held either way: what could have been removed unseen is forgotten.
    """

    blocks: HeldBlocks
    next_seq: int = 0
    last_ts: float = 0.0
    partial: str = UNHEARD
    lag_s: float = 0.0
    batches: int = 0
    gaps: int = 0
    restarts: int = 0
    undecodable: int = 0
    last_error: str = field(default="")

    def sort(self, seq: int, ts: float) -> Step:
        """Whether a batch is the next one, was seen, comes after a gap, or starts the numbers anew.

        A batch with a number from before, yet later than the last one, is of another publisher.
        """
        if seq < self.next_seq:
            return Step.OLD if ts <= self.last_ts else Step.RESTART
        return Step.NEXT if seq == self.next_seq else Step.GAP

    def apply(self, seq: int, batch: Batch, now_s: float) -> Iterator[None]:
        """Take a batch in, yielding between slices. A broken event makes what is known partial."""
        if seq == 0:
            self.partial = ""
        self.next_seq, self.last_ts = seq + 1, batch.ts
        self.batches += 1
        self.lag_s = now_s - batch.ts
        for event in batch.events:
            try:
                yield from self._event(event)
            except (ValueError, OverflowError, TypeError) as error:
                self.spoil(seq, f"{type(error).__name__}: {error}")
        if self.blocks.refused and not self.partial:
            self.partial = f"more than {self.blocks.limit} blocks"

    def spoil(self, seq: int, why: str) -> None:
        """A batch cannot be read: what it removed is not known, so nothing is held for sure."""
        self.undecodable += 1
        self.last_error = why
        self.blocks.clear()
        self.partial = "a message could not be read"
        self.next_seq = seq + 1

    def lose(self, seq: int) -> None:
        """The batches before this one are gone."""
        self.gaps += 1
        self.blocks.clear()
        self.partial = "earlier messages are lost" if self.next_seq else "older messages are not to be had"
        self.next_seq = seq

    def begin(self) -> None:
        """Take the stream from its beginning; nothing is known to be held. Every cache that tells of its
        blocks begins with a flush: one that has published nothing yet may be one that never will."""
        self.blocks.clear()
        self.next_seq, self.last_ts, self.partial = 0, 0.0, UNHEARD

    def restart(self) -> None:
        """The publisher is another one."""
        self.restarts += 1
        self.begin()

    def _event(self, event: BlockStored | BlockRemoved | AllBlocksCleared) -> Iterator[None]:
        match event:
            case AllBlocksCleared():
                self.blocks.clear()
                self.blocks.refused = 0
                self.partial = ""
            case BlockStored() if on_gpu(event):
                yield from self._store(event)
            case BlockRemoved() if on_gpu(event):
                for begin in range(0, len(event.block_hashes), SLICE):
                    self.blocks.remove(event.block_hashes[begin : begin + SLICE])
                    yield

    def _store(self, event: BlockStored) -> Iterator[None]:
        hashes, tokens, size = event.block_hashes, event.tokens, event.block_size
        if len(tokens) != len(hashes) * size:
            raise ValueError(f"{len(tokens)} tokens for {len(hashes)} blocks of {size}")
        parent = event.parent_block_hash
        for begin in range(0, len(hashes), SLICE):
            some = hashes[begin : begin + SLICE]
            part = tokens[begin * size : (begin + SLICE) * size]
            self.blocks.store(some, parent, part, size, event.namespace)
            parent = some[-1]
            yield

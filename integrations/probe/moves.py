"""Real moves between two registered buffers, alone or several at once."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from kvferry.integrations.transports.base import Batch, Peer, Region, Transport
from kvferry.integrations.transports.errors import Refused
from kvferry.models.paths.sample import Sample

__all__ = ["Mover", "scattered"]

# Each of the moves at once is repeated: the first and the last have less company than they are told to.
ROUNDS = 3


def scattered(
    own: Region, theirs: Region, moved_bytes: int, descriptors: int, rng: np.random.Generator
) -> Batch:
    """Blocks of one size at shuffled places of both sides, none twice.

    Raises `Refused` where the bytes do not divide into the descriptors or do not fit.
    """
    if moved_bytes % descriptors:
        raise Refused(f"{moved_bytes} bytes are not {descriptors} blocks of one size")
    block = moved_bytes // descriptors
    if moved_bytes > min(own.nbytes, theirs.nbytes):
        raise Refused(f"{moved_bytes} bytes do not fit the buffers ({own.nbytes} and {theirs.nbytes})")
    addresses = [
        side.address + block * rng.choice(side.nbytes // block, descriptors, replace=False).astype(np.int64)
        for side in (own, theirs)
    ]
    return Batch(addresses[0], addresses[1], np.full(descriptors, block, np.int64))


class Mover:
    """Moves from `own` to a peer's first region; blocking."""

    def __init__(self, transport: Transport, own: Region) -> None:
        self._transport, self._own = transport, own
        self._rng = np.random.default_rng(0)

    def alone(self, peer: Peer, moved_bytes: int, descriptors: int, deadline_s: float) -> Sample:
        """One move that has the path to itself. Raises what `Moving.wait` raises."""
        return self._move(peer, self._batch(peer, moved_bytes, descriptors), 1, deadline_s)

    def crowd(
        self, peer: Peer, moved_bytes: int, descriptors: int, concurrency: int, deadline_s: float
    ) -> list[Sample]:
        """`concurrency` threads that move over and over: what a move takes with so many under way.

        Those are kept that began and ended in full company.
        """
        start = threading.Barrier(concurrency)
        batches = [self._batch(peer, moved_bytes, descriptors) for _ in range(concurrency)]

        def one(batch: Batch) -> list[Sample]:
            start.wait()
            took = [self._move(peer, batch, concurrency, deadline_s) for _ in range(ROUNDS)]
            return took[1:-1]

        with ThreadPoolExecutor(concurrency, "kvferry-probe") as pool:
            return [sample for samples in pool.map(one, batches) for sample in samples]

    def _batch(self, peer: Peer, moved_bytes: int, descriptors: int) -> Batch:
        return scattered(self._own, peer.regions[0], moved_bytes, descriptors, self._rng)

    def _move(self, peer: Peer, batch: Batch, concurrency: int, deadline_s: float) -> Sample:
        # Who has waited in line behind others has waited for the path: by n moves each takes n times as long.
        done = self._transport.submit(peer, batch).wait(deadline_s * concurrency)
        return Sample(done.moved_bytes, done.descriptors, max(done.total_s, 1e-9), concurrency)

"""What the executor costs over the library's best raw call on the same blocks."""

import time
from collections.abc import Callable

from transports_parts.alternate import Compared, alternate
from transports_parts.pair import Pair

MOVED_BYTES = 64 * 2**20
BLOCK_BYTES = 64 * 2**10


def overhead(pair: Pair, pairs: int, advance: Callable[[], None]) -> Compared:
    """RuntimeError where wrong bytes arrive."""
    batch = pair.batch(MOVED_BYTES, MOVED_BYTES // BLOCK_BYTES)
    theirs = pair.raw.prepared(batch)

    def ours() -> float:
        pair.ask("ours")
        began_s = time.perf_counter()
        pair.transport.submit(pair.peer, batch).wait(60.0)
        return time.perf_counter() - began_s

    for seed, move in enumerate((ours, theirs)):
        pair.refill(MOVED_BYTES, seed)
        with pair.raw_moves():
            move()
        if not pair.arrived(batch):
            raise RuntimeError(f"{pair.way}: wrong bytes arrived")
    return alternate(pair, "executor, 64 KiB blocks", ours, theirs, pairs, advance)

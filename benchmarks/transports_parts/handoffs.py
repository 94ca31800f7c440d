"""Whole handoffs, from the sending to the word that all is there, beside raw calls over the same pages."""

import itertools
import os
import time
from collections.abc import Callable

from transports_parts import pools
from transports_parts.alternate import Compared, alternate
from transports_parts.pair import Pair

from kvferry.integrations.handoff.source import Source
from kvferry.integrations.transports.registry import open_transport
from kvferry.models.moves.choose import Form

LAID_OUT = {Form.SCATTERED: 64, Form.STAGED: 1}
WHAT = {Form.SCATTERED: "handoff, 64 KiB blocks", Form.STAGED: "staged handoff, 1 KiB blocks"}


def handoffs(pair: Pair, form: Form, pairs: int, advance: Callable[[], None]) -> Compared:
    """Scattered: a page is 64 tokens and a block of it 64 KiB. Staged: 1 token, 1 KiB; the raw call moves all
    65,536 blocks one by one, over Mooncake 1,024 at once. `Corrupt` where wrong bytes arrive."""
    page_size = LAID_OUT[form]
    src, dst = pools.place(page_size, 1), pools.place(page_size, 2)
    pool = pools.pool(pair.memory, page_size)
    port = pair.ask(f"destination {page_size}")
    transport = open_transport(pair.transport.name, f"source-{os.getpid()}")
    source = Source(transport, [pool.spec], {0: pool}, agent="bench")
    rooms = itertools.count(1)

    def ours(verify: bool = False) -> float:
        room = next(rooms)
        pair.ask(f"expect {room}")
        began_s = time.perf_counter()
        source.send(peering, room, src, pools.TOKENS, form=form, verify=verify).wait(60.0)
        took_s = time.perf_counter() - began_s
        pair.ask(f"arrived {room}")
        return took_s

    try:
        peering = source.connect("peer", "127.0.0.1", port)
        pair.refill(pools.POOL_BYTES, page_size)
        ours(verify=True)
        theirs = pair.raw.prepared(pools.blocks(pair.memory.address, src, pair.there, dst, page_size))
        return alternate(pair, WHAT[form], ours, theirs, pairs, advance)
    finally:
        source.close()
        pair.ask("no destination")

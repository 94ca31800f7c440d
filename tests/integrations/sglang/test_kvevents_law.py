"""Whatever is lost on the way: what is said to be whole is the truth, and nothing is held that is gone."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import zmq.asyncio
from hypothesis import given
from hypothesis import strategies as st

from kvferry.integrations.sglang.kvevents_feed import Feed
from kvferry.integrations.sglang.kvevents_follower import Follower
from kvferry.integrations.sglang.kvevents_source import Source
from kvferry.models.kv_blocks import HeldBlocks
from kvferry.models.prefix import block_hashes
from kvferry.models.prefix_keys import PrefixKeys

PAGE = 2


@dataclass
class Worker:
    """Holds single blocks of two tokens, says so in batches, and remembers the last `kept` of them."""

    kept: int
    held: set[int] = field(default_factory=set)
    sent: list[bytes] = field(default_factory=list)
    now_s: float = 0.0
    answers: bool = True

    def step(self, stores: bool, block: int) -> tuple[int, bytes]:
        self.now_s += 1.0
        event: dict[str, Any] = {"type": "BlockRemoved", "block_hashes": [block]}
        if stores:
            self.held.add(block)
            tokens = {"parent_block_hash": None, "token_ids": [block, block], "block_size": PAGE}
            event = {"type": "BlockStored", "block_hashes": [block], **tokens}
        else:
            self.held.discard(block)
        self.sent.append(msgspec.msgpack.encode([self.now_s, [event], 0]))
        return len(self.sent) - 1, self.sent[-1]

    def restart(self) -> None:
        self.held.clear()
        self.sent.clear()
        self.now_s += 1.0


class Line(Follower):
    """A follower whose replay socket is the worker itself."""

    worker: Worker

    async def _replayed(self, begin: int) -> AsyncGenerator[tuple[int, bytes], None]:
        if not self.worker.answers:
            raise TimeoutError
        for seq in range(max(begin, len(self.worker.sent) - self.worker.kept), len(self.worker.sent)):
            yield seq, self.worker.sent[seq]


MOVES = st.sampled_from(["arrives"] * 6 + ["lost"] * 2 + ["ask", "restart", "deaf", "answers"])


@given(
    st.lists(st.tuples(MOVES, st.booleans(), st.integers(0, 5)), max_size=60),
    st.integers(1, 60),
    st.booleans(),
)
def test_what_is_said_to_be_whole_is_the_truth(
    moves: list[tuple[str, bool, int]], kept: int, replays: bool
) -> None:
    worker = Worker(kept)
    feed = Feed(HeldBlocks(PAGE))
    source = Source("tcp://127.0.0.1:1", "tcp://127.0.0.1:2" if replays else "", b"", PAGE)
    line = Line("worker", source, feed, zmq.asyncio.Context.instance())
    line.worker = worker

    def known() -> set[int]:
        tokens = [(block, block, 9) for block in range(6)]
        return {ids[0] for ids in tokens if feed.blocks.held(PrefixKeys(ids, block_hashes(ids)))}

    def truthful() -> None:
        assert known() <= worker.held
        assert feed.partial or known() == worker.held

    async def play() -> None:
        await line._catch_up()
        for move, stores, block in moves:
            match move:
                case "arrives" | "lost":
                    seq, payload = worker.step(stores, block)
                    if move == "arrives":
                        await line._live(seq, line._read(payload))
                        truthful()
                        assert feed.next_seq == seq + 1
                case "ask":
                    await line._catch_up()
                case "restart":
                    worker.restart()
                    # what SGLang's cache publishes first
                    worker.now_s += 1.0
                    worker.sent.append(
                        msgspec.msgpack.encode([worker.now_s, [{"type": "AllBlocksCleared"}], 0])
                    )
                    await line._live(0, line._read(worker.sent[0]))
                case "deaf" | "answers":
                    worker.answers = move == "answers"
        worker.answers = True
        await line._catch_up()
        if replays:
            truthful()
            assert not feed.partial or not 0 < len(worker.sent) <= kept

    asyncio.run(play())

"""Following KV events over real sockets: late, with gaps, through restarts, and into a router's decision."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from kvferry.integrations.sglang import kvevents_follower
from kvferry.integrations.sglang.body import Endpoint, parse
from kvferry.integrations.sglang.kvevents import Holdings, KVEvents, comparable
from kvferry.integrations.sglang.local.ports import free_ports
from kvferry.models.prefix import block_hashes
from kvferry.models.prefix_keys import PrefixKeys

PAGE = 4
WORKER = "http://127.0.0.1:1"
END = (-1).to_bytes(8, "big", signed=True)
CLEARED = {"type": "AllBlocksCleared"}
ONE, TWO, THREE = ([token + 10 * n for token in range(PAGE)] for n in (1, 2, 3))


def keys(prompt: list[int]) -> PrefixKeys:
    return PrefixKeys(tuple(prompt), block_hashes(prompt))


def stored(tokens: list[int], name: int, parent: int | None = None) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": [name],
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": PAGE,
        "medium": "GPU",
    }


class Publisher:
    """Publishes and replays as SGLang's does; `deaf`: replay requests are never answered."""

    def __init__(self, port: int, replay_port: int, topic: bytes = b"kv", kept: int = 100) -> None:
        self.topic, self.seq, self.deaf = topic, 0, False
        self.buffer: deque[tuple[int, bytes]] = deque(maxlen=kept)
        self.asked: list[int] = []
        self.context = zmq.asyncio.Context()
        self.pub, self.router = self.context.socket(zmq.PUB), self.context.socket(zmq.ROUTER)
        self.pub.bind(f"tcp://127.0.0.1:{port}")
        self.router.bind(f"tcp://127.0.0.1:{replay_port}")
        self.task = asyncio.create_task(self._serve())

    async def publish(self, *events: Any, lost: bool = False, payload: bytes | None = None) -> None:
        """One batch; `lost`: it never leaves, but can be asked for."""
        payload = msgspec.msgpack.encode([time.time(), events, 0]) if payload is None else payload
        self.buffer.append((self.seq, payload))
        if not lost:
            await self.pub.send_multipart([self.topic, self.seq.to_bytes(8, "big"), payload])
        self.seq += 1

    async def close(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task
        self.context.destroy(linger=0)

    async def _serve(self) -> None:
        while True:
            client, _, start = await self.router.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            if self.deaf:
                continue
            for seq, payload in self.buffer:
                if seq >= self.asked[-1]:
                    await self.router.send_multipart(
                        [client, b"", self.topic, seq.to_bytes(8, "big"), payload]
                    )
            await self.router.send_multipart([client, b"", b"", END, b""])


class Stage:
    """Publishers on fixed ports, and what follows them."""

    def __init__(self) -> None:
        self.port, self.replay_port = free_ports(2)
        self.events = KVEvents()
        self.publishers: list[Publisher] = []
        self.replay = True

    @property
    def info(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "publisher": "zmq",
            "endpoint_host": "*",
            "endpoint_port_base": self.port,
            "topic": "kv",
            "block_size": PAGE,
        }
        if self.replay:
            told["replay_endpoint_port_base"] = self.replay_port
        return {"kv_events": told}

    def publisher(self, **options: Any) -> Publisher:
        self.publishers.append(Publisher(self.port, self.replay_port, **options))
        return self.publishers[-1]

    def follow(self, **info: Any) -> Holdings:
        held = self.events.follow(WORKER, self.info | info)
        assert held is not None
        return held

    async def joined(self, publisher: Publisher, held: Holdings, rank: int = 0) -> None:
        """Until what is published arrives: PUB drops it before."""
        feed = held.followers[rank].feed
        before = feed.batches
        for _ in range(300):
            await publisher.publish()
            await asyncio.sleep(0.02)
            if feed.batches > before:
                return
        raise AssertionError("nothing arrived")


@pytest.fixture
async def stage(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(kvevents_follower, "IDLE_S", 0.3)
    monkeypatch.setattr(kvevents_follower, "REPLAY_S", 0.3)
    made = Stage()
    yield made
    await made.events.close()
    for publisher in made.publishers:
        await publisher.close()


async def test_what_came_before_is_asked_for(stage: Stage, eventually: Any) -> None:
    publisher = stage.publisher()
    await publisher.publish(CLEARED)
    await publisher.publish(stored(ONE, 1), stored(TWO, 2, parent=1))
    held = stage.follow()
    assert held.partial
    await eventually(lambda: not held.partial)
    assert held.held(keys([*ONE, *TWO, 0])) == 2 * PAGE
    await stage.joined(publisher, held)
    await publisher.publish(stored(THREE, 3, parent=2))
    await eventually(lambda: held.held(keys([*ONE, *TWO, *THREE, 0])) == 3 * PAGE)
    told = held.describe()
    assert (told["gaps"], told["restarts"], told["undecodable"], told["partial"]) == (0, 0, 0, "")
    assert 0 <= told["lag_s"] < 60


async def test_a_worker_that_has_published_nothing_yet_may_never_do(stage: Stage, eventually: Any) -> None:
    publisher = stage.publisher()
    held = stage.follow()
    await eventually(lambda: len(publisher.asked) > 2)
    assert held.partial
    await publisher.publish(CLEARED, lost=True)
    await eventually(lambda: not held.partial)


async def test_a_gap_is_filled_by_asking(stage: Stage, eventually: Any) -> None:
    publisher = stage.publisher()
    held = stage.follow()
    await stage.joined(publisher, held)
    await publisher.publish(stored(ONE, 1), lost=True)
    await publisher.publish(stored(TWO, 2, parent=1))
    await eventually(lambda: held.held(keys([*ONE, *TWO, 0])) == 2 * PAGE)
    assert held.describe()["gaps"] == 0
    assert held.partial == ""


async def test_a_last_message_that_was_lost_is_asked_for(stage: Stage, eventually: Any) -> None:
    publisher = stage.publisher()
    held = stage.follow()
    await stage.joined(publisher, held)
    await publisher.publish(stored(ONE, 1), lost=True)
    await eventually(lambda: held.held(keys([*ONE, 0])) == PAGE)


async def test_a_gap_that_cannot_be_filled_forgets_all_and_says_so(stage: Stage, eventually: Any) -> None:
    stage.replay = False
    publisher = stage.publisher()
    await asyncio.sleep(0)
    held = stage.follow()
    await stage.joined(publisher, held)
    await publisher.publish(CLEARED)
    await publisher.publish(stored(ONE, 1))
    await eventually(lambda: held.held(keys([*ONE, 0])) == PAGE)
    assert held.partial == ""
    await publisher.publish({"type": "BlockRemoved", "block_hashes": [1]}, lost=True)
    await publisher.publish(stored(TWO, 2))
    await eventually(lambda: held.held(keys([*TWO, 0])) == PAGE)
    assert held.held(keys([*ONE, 0])) == 0
    assert "lost" in held.partial
    assert held.describe()["gaps"] == 2


async def test_a_buffer_that_is_too_short_leaves_a_part(stage: Stage, eventually: Any) -> None:
    publisher = stage.publisher(kept=1)
    await publisher.publish(stored(ONE, 1))
    await publisher.publish(stored(TWO, 2, parent=1))
    await publisher.publish(stored(THREE, 3))
    held = stage.follow()
    await eventually(lambda: held.held(keys([*THREE, 0])) == PAGE)
    assert "older" in held.partial
    assert held.held(keys([*ONE, 0])) == 0


async def test_a_restart_is_seen_by_its_numbers(stage: Stage, eventually: Any) -> None:
    first = stage.publisher()
    held = stage.follow()
    await stage.joined(first, held)
    await first.publish(stored(ONE, 1))
    await eventually(lambda: held.held(keys([*ONE, 0])) == PAGE)
    await first.close()
    second = stage.publisher()
    await second.publish(CLEARED)
    await second.publish(stored(TWO, 1))
    await eventually(lambda: held.held(keys([*TWO, 0])) == PAGE)
    assert held.held(keys([*ONE, 0])) == 0
    assert held.partial == ""
    assert held.describe()["restarts"] == 1


async def test_a_restart_is_seen_without_replay_too(stage: Stage, eventually: Any) -> None:
    stage.replay = False
    first = stage.publisher()
    held = stage.follow()
    for _ in range(5):
        await stage.joined(first, held)
    await first.publish(CLEARED, stored(ONE, 1))
    await eventually(lambda: held.held(keys([*ONE, 0])) == PAGE)
    await first.close()
    second = stage.publisher()
    await stage.joined(second, held)
    assert held.held(keys([*ONE, 0])) == 0
    assert held.describe()["restarts"] == 1


async def test_replay_that_answers_late_is_asked_from_the_beginning(stage: Stage, eventually: Any) -> None:
    publisher = stage.publisher()
    publisher.deaf = True
    await publisher.publish(stored(ONE, 1))
    held = stage.follow()
    await stage.joined(publisher, held)
    assert held.partial
    publisher.deaf = False
    await eventually(lambda: not held.partial)
    assert held.held(keys([*ONE, 0])) == PAGE


async def test_what_cannot_be_read_is_counted_told_once_and_survived(
    stage: Stage, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = stage.publisher()
    held = stage.follow()
    await stage.joined(publisher, held)
    with caplog.at_level(logging.INFO, logger="kvferry.kvevents"):
        for _ in range(3):
            await publisher.publish(payload=b"\xc1 no msgpack")
        await publisher.publish(stored(ONE, 1))
        await eventually(lambda: held.held(keys([*ONE, 0])) == PAGE)
        await eventually(lambda: held.partial)
    assert held.describe()["undecodable"] == 3
    assert sum("cannot be read" in message for message in caplog.messages) == 1
    await publisher.publish(CLEARED)
    await eventually(lambda: not held.partial)


async def test_frames_of_another_topic_or_shape_are_not_ours(stage: Stage, eventually: Any) -> None:
    publisher = stage.publisher()
    held = stage.follow()
    await stage.joined(publisher, held)
    for frames in ([b"kv2", b"12345678", b"x"], [b"kv"], [b"kv", b"123", b"x"]):
        await publisher.pub.send_multipart(frames)
    await publisher.publish(stored(ONE, 1))
    await eventually(lambda: held.held(keys([*ONE, 0])) == PAGE)
    assert held.describe()["undecodable"] == 0


async def test_a_worker_that_comes_back_is_followed_on_only_as_the_same_process(
    stage: Stage, eventually: Any
) -> None:
    publisher = stage.publisher()
    held = stage.follow(random_seed=1)
    await stage.joined(publisher, held)
    assert stage.follow(random_seed=1) is held
    again = stage.follow(random_seed=2)
    assert again is not held
    await eventually(lambda: not again.partial)
    await eventually(lambda: all(task.done() for task in held.tasks))
    assert stage.events.follow(WORKER, {}) is None
    await eventually(lambda: all(task.done() for task in again.tasks))
    assert stage.events.follow(WORKER, {"kv_events": {"publisher": "zmq"}}) is None


async def test_of_several_ranks_the_mean_is_held(stage: Stage, eventually: Any) -> None:
    stage.replay = False
    spare = free_ports(2)
    ranks = [Publisher(stage.port, spare[0]), Publisher(stage.port + 1, spare[1])]
    stage.publishers += ranks
    held = stage.follow(kv_events=stage.info["kv_events"] | {"dp_size": 2})
    for number, rank in enumerate(ranks):
        await stage.joined(rank, held, number)
    await ranks[0].publish(CLEARED, stored(ONE, 1), stored(TWO, 2, parent=1), stored(THREE, 3, parent=2))
    await eventually(lambda: held.held(keys([*ONE, *TWO, *THREE, 0])) == PAGE)
    await ranks[1].publish(CLEARED, stored(ONE, 1))
    await eventually(lambda: held.held(keys([*ONE, *TWO, *THREE, 0])) == 2 * PAGE)
    assert held.describe()["blocks"] == 4
    assert held.partial == ""
    held.followers[1].feed.lose(99)
    assert held.partial


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"input_ids": [1, 2], "sampling_params": {}}', True),
        (b'{"text": "ab"}', False),
        (b'{"input_ids": [[1, 2], [3]]}', False),
        (b'{"input_ids": [1, 2], "lora_path": "a"}', False),
        (b'{"input_ids": [1, 2], "extra_key": "a"}', False),
        (b'{"input_ids": [1, 2], "return_logprob": true, "logprob_start_len": 0}', False),
    ],
)
def test_which_prompts_are_compared(body: bytes, expected: bool) -> None:
    assert comparable(parse(Endpoint.GENERATE, body)) is expected


async def test_a_router_predicts_hits_from_events_and_from_its_own_history_otherwise(
    stage: Stage, route: Callable[..., Any], worker: Callable[..., Any], eventually: Any
) -> None:
    publisher = stage.publisher()
    prompt = [7] * 64 + ONE + TWO
    await publisher.publish(CLEARED)
    await publisher.publish(
        *(stored(prompt[at : at + PAGE], at + 1, at - PAGE + 1 if at else None) for at in range(0, 68, PAGE))
    )
    follows, guesses = await worker("colocated", **stage.info), await worker("colocated")
    router, other = await route(follows), await route(guesses)
    (member,) = router.ferry.fleet.members.values()
    await eventually(lambda: member.kv is not None and not member.kv.partial)
    for each in (router, other):
        for _ in range(2):
            answer = await each.post(body={"input_ids": prompt, "sampling_params": {"max_new_tokens": 4}})
            assert answer.status == 200
    (row,) = msgspec.json.decode((await router.get("/kvferry/workers")).raw)["workers"]
    told = {name: row["prefix"][name] for name in ("kind", "blocks", "partial", "hits_checked")}
    assert told == {"kind": "events", "blocks": 17, "partial": "", "hits_checked": 2}
    (row,) = msgspec.json.decode((await other.get("/kvferry/workers")).raw)["workers"]
    assert row["prefix"] == {"kind": "history"}
    body = parse(Endpoint.GENERATE, msgspec.json.encode({"input_ids": prompt}))
    assert router.ferry.passage(body, 0.0).request.held_tokens == {follows.url: 68}
    assert other.ferry.passage(body, 0.0).request.held_tokens == {guesses.url: 64}
    short = parse(Endpoint.GENERATE, msgspec.json.encode({"input_ids": prompt[:10]}))
    assert router.ferry.passage(short, 0.0).request.held_tokens == {follows.url: 8}
    await publisher.publish(CLEARED)
    await eventually(lambda: not member.kv.describe()["blocks"])
    assert router.ferry.passage(body, 0.0).request.held_tokens == {}

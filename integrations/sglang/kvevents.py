"""What the workers' KV caches really hold, where workers tell it: followed rank by rank."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import zmq.asyncio

from kvferry.integrations.sglang.body import Body
from kvferry.integrations.sglang.kvevents_feed import Feed
from kvferry.integrations.sglang.kvevents_follower import Follower
from kvferry.integrations.sglang.kvevents_source import sources_of
from kvferry.models.kv_blocks import MAX_BLOCKS, HeldBlocks
from kvferry.models.prefix_keys import PrefixKeys

log = logging.getLogger("kvferry.kvevents")

# Fields by which a request's KV is kept apart from plain prompts; adapters and salts are told in events.
APART = (b'"lora_path"', b'"extra_key"', b'"cache_salt"')


def comparable(body: Body) -> bool:
    """Whether a request's prompt can be compared with blocks: one prompt, given as ids, in the plain
    namespace, and without logprobs of the prompt, which SGLang computes anew."""
    return (
        body.exact
        and len(body.prompts) == 1
        and not body.input_logprobs
        and not any(name in body.raw for name in APART)
    )


@dataclass(slots=True, eq=False)
class Holdings:
    """One worker's caches, one for each data-parallel rank."""

    followers: Sequence[Follower]
    identity: object
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)
    checked: int = 0
    within_page: int = 0

    @property
    def partial(self) -> str:
        """Why the worker may hold more than is known; empty when it cannot."""
        for follower in self.followers:
            if follower.feed.partial or follower.catching_up:
                return follower.feed.partial or "catching up"
        return ""

    def held(self, prompt: PrefixKeys) -> int:
        """How many leading tokens of a prompt need no prefill, in whole pages.

        Which rank a request will meet is the worker's choice: the mean over ranks, which is what a prefill
        costs less on average.
        """
        total = sum(follower.feed.blocks.held(prompt) for follower in self.followers)
        page = self.followers[0].feed.blocks.page_tokens
        return total // len(self.followers) // page * page

    def check(self, expected_tokens: int, reported_tokens: int) -> None:
        """The worker reported a hit where another one, or the same, was expected."""
        page = self.followers[0].feed.blocks.page_tokens
        self.checked += 1
        self.within_page += abs(expected_tokens - reported_tokens) <= page

    def describe(self) -> dict[str, Any]:
        """Counts over all ranks; `lag_s` is the greatest, and off by what the two clocks differ."""
        feeds = [follower.feed for follower in self.followers]
        return {
            "blocks": sum(len(feed.blocks) for feed in feeds),
            "partial": self.partial,
            "lag_s": max(feed.lag_s for feed in feeds),
            "batches": sum(feed.batches for feed in feeds),
            "gaps": sum(feed.gaps for feed in feeds),
            "restarts": sum(feed.restarts for feed in feeds),
            "undecodable": sum(feed.undecodable for feed in feeds),
            "passed_over": sum(feed.blocks.orphans + feed.blocks.refused for feed in feeds),
            "hits_checked": self.checked,
            "hits_within_page": self.within_page,
        }


@dataclass(slots=True, eq=False)
class KVEvents:
    """All followed workers, by id."""

    _context: zmq.asyncio.Context = field(default_factory=zmq.asyncio.Context)
    _followed: dict[str, Holdings] = field(default_factory=dict)

    def follow(self, worker: str, info: Mapping[str, Any]) -> Holdings | None:
        """Follow a worker that is there (again), or go on where it is still the same process; None when
        it publishes nothing to follow."""
        try:
            sources = sources_of(worker, info)
        except ValueError as error:
            log.warning("%s: KV events cannot be followed: %s", worker, error)
            sources = ()
        identity = (sources, info.get("startup_time"), info.get("random_seed"))
        known = self._followed.get(worker)
        if known is not None and known.identity == identity:
            return known
        self._forget(worker)
        if not sources:
            return None
        limit = MAX_BLOCKS // len(sources)
        followers = [
            Follower(
                worker if len(sources) == 1 else f"{worker} rank {rank}",
                source,
                Feed(HeldBlocks(source.page_tokens, limit)),
                self._context,
            )
            for rank, source in enumerate(sources)
        ]
        held = self._followed[worker] = Holdings(followers, identity)
        held.tasks = [asyncio.create_task(one.run(), name=f"kv events {one.whose}") for one in followers]
        return held

    async def close(self) -> None:
        """End all tasks and sockets."""
        tasks = [task for held in self._followed.values() for task in held.tasks]
        for worker in list(self._followed):
            self._forget(worker)
        await asyncio.gather(*tasks, return_exceptions=True)
        self._context.destroy(linger=0)

    def _forget(self, worker: str) -> None:
        for task in self._followed.pop(worker, Holdings((), None)).tasks:
            task.cancel()

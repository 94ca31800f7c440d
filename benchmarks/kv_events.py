"""How fast KV events are followed, and what matching a prompt against them adds to a decision.

    python benchmarks/kv_events.py [--pages 1 16 64] [--workers 16] [--tokens 4000]

Follows a burst of stored blocks, then their removal, from packed bytes as they come from a socket; then
matches prompts of `tokens` ids against the caches of `workers` workers. Prints blocks per second, bytes per
block, and microseconds per prompt: for its hashes, which every request pays anyway, and for the match.
"""

import argparse
import json
import platform
import random
import sys
import time
import tracemalloc

import msgspec

from kvferry.integrations.sglang.kvevents_feed import Feed
from kvferry.integrations.sglang.kvevents_message import decode
from kvferry.models.kv_blocks import HeldBlocks
from kvferry.models.prefix import block_hashes
from kvferry.models.prefix_keys import PrefixKeys

STORED_TOKENS = 256 * 1024
EVENT_TOKENS = 4096
ROUNDS = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pages", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = [measured(page, given.workers, given.tokens) for page in given.pages]
    if given.json:
        print(json.dumps({"python": platform.python_version(), "pages": rows}))
        return
    for row in rows:
        print(", ".join(f"{name} {value:g}" for name, value in row.items()))


def measured(page: int, workers: int, tokens: int) -> dict[str, float]:
    rng = random.Random(page)
    prompts = [rng.choices(range(150_000), k=EVENT_TOKENS) for _ in range(STORED_TOKENS // EVENT_TOKENS)]
    stored, removed = messages(prompts, page)
    feed = Feed(HeldBlocks(page))
    tracemalloc.start()
    follow(feed, stored)
    room = tracemalloc.get_traced_memory()[0] / len(feed.blocks)
    tracemalloc.stop()
    caches = [Feed(HeldBlocks(page)) for _ in range(workers)]
    store_s = min(follow(cache, stored) for cache in caches)
    hash_s, match_s = [], []
    for number in range(ROUNDS):
        ids = tuple((prompts[number % len(prompts)] * (tokens // EVENT_TOKENS + 1))[:tokens])
        begun = time.perf_counter()
        hashes = block_hashes(ids)
        hashed = time.perf_counter()
        keys = PrefixKeys(ids, hashes)
        for cache in caches:
            cache.blocks.held(keys)
        match_s.append(time.perf_counter() - hashed)
        hash_s.append(hashed - begun)
    count = len(feed.blocks)
    return {
        "page": page,
        "stored_blocks_per_s": round(count / store_s),
        "removed_blocks_per_s": round(count / min(follow(cache, removed) for cache in caches)),
        "bytes_per_block": round(room),
        "hash_us": round(1e6 * middle(hash_s), 1),
        "match_us": round(1e6 * middle(match_s), 1),
    }


def messages(prompts: list[list[int]], page: int) -> tuple[list[bytes], list[bytes]]:
    """One message per prompt: its blocks stored, and removed again."""
    name = random.Random(0)
    stored, removed = [], []
    for prompt in prompts:
        pages = len(prompt) // page
        hashes = [name.getrandbits(63) for _ in range(pages)]
        event = {"block_hashes": hashes, "medium": "GPU"}
        store = {"parent_block_hash": None, "token_ids": prompt[: pages * page], "block_size": page}
        stored.append(msgspec.msgpack.encode([1.0, [{"type": "BlockStored", **event, **store}], 0]))
        removed.append(msgspec.msgpack.encode([1.0, [{"type": "BlockRemoved", **event}], 0]))
    return stored, removed


def follow(feed: Feed, payloads: list[bytes]) -> float:
    """Seconds that it takes."""
    begun = time.perf_counter()
    for payload in payloads:
        for _ in feed.apply(feed.next_seq, decode(payload), now_s=1.0):
            pass
    return time.perf_counter() - begun


def middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


if __name__ == "__main__":
    sys.exit(main())

"""The KV memory of one engine: tokens that belong to requests, and cached blocks that many can share."""

from kvferry.models.simulator.cache import PrefixCache
from kvferry.models.simulator.job import Job


class KVRoom:
    """`private_tokens` + cached blocks never exceed `capacity_tokens`; idle blocks give way to requests."""

    __slots__ = ("cache", "caches", "capacity_tokens", "private_tokens")

    def __init__(self, capacity_tokens: int, block_tokens: int, caches: bool) -> None:
        self.capacity_tokens = capacity_tokens
        self.caches = caches
        self.cache = PrefixCache(block_tokens)
        self.private_tokens = 0

    @property
    def room_tokens(self) -> int:
        """Tokens that are free or would be, were all idle blocks given up."""
        return self.capacity_tokens - self.private_tokens - self.cache.tokens + self.cache.idle_tokens

    @property
    def used_tokens(self) -> int:
        """Tokens that requests hold."""
        return self.private_tokens + self.cache.tokens - self.cache.idle_tokens

    def take(self, tokens: int) -> None:
        """Private tokens for running requests, idle blocks giving way. ValueError beyond the room."""
        short = self.private_tokens + self.cache.tokens + tokens - self.capacity_tokens
        if short > 0:
            if short > self.cache.idle_tokens:
                raise ValueError(f"{tokens} KV tokens asked for, {self.room_tokens} are left")
            self.cache.evict(short)
        self.private_tokens += tokens

    def admit(self, job: Job, reserve_tokens: int) -> bool:
        """Room for all of `job`'s tokens so far, if as much and `reserve_tokens` are there; its cached
        prefix is locked and counts as computed."""
        need = job.prompt_tokens + job.generated
        found = self.cache.match(job.blocks) if self.caches and job.blocks else 0
        size = self.cache.block_tokens
        blocks = list(job.blocks[:found])
        # locking takes idle blocks out of the room, as taking tokens does
        idle_before = self.cache.idle_tokens
        self.cache.lock(blocks)
        cost = need - found * size + (idle_before - self.cache.idle_tokens)
        if self.room_tokens + (idle_before - self.cache.idle_tokens) < cost + reserve_tokens:
            self.cache.unlock(blocks)
            return False
        job.locked = blocks
        job.private_tokens = need - found * size
        job.computed_tokens = min(found * size, need - 1)
        if not job.retractions:
            job.cached_tokens = job.computed_tokens
        self.take(job.private_tokens)
        return True

    def keep(self, job: Job) -> None:
        """The prompt is computed: its full blocks can be found by others."""
        if not self.caches:
            return
        known = len(job.locked)
        fresh = list(job.blocks[known:])
        self.cache.add(fresh)
        tokens = len(fresh) * self.cache.block_tokens
        job.locked += fresh
        job.private_tokens -= tokens
        self.private_tokens -= tokens

    def free(self, job: Job) -> None:
        """All that `job` holds."""
        self.private_tokens -= job.private_tokens
        job.private_tokens = 0
        self.cache.unlock(job.locked)
        job.locked = []

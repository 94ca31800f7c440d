"""What the arms of all routers have met and missed, in the store.

Every router writes its own sums, whole, under a name of its own for each stretch of constant shares: writing
them again changes nothing, so that a write whose answer was lost is simply repeated, and no router touches
what another wrote. A router that is killed leaves what it wrote last.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from kvferry.integrations.redis.connection import Store
from kvferry.integrations.registry.arms import ArmName, Stretch
from kvferry.models.offpolicy.sequential import Arm as Judged

KEPT_S = 30 * 86_400
MOST_REQUESTS = 10**12


class Counts(msgspec.Struct, frozen=True):
    """Of one stretch of one router: shares assigned, requests judged, how many of those missed, and how many
    had predictions that the arm's model corrected."""

    shares: dict[str, float] = {}
    requests: dict[str, int] = {}
    missed: dict[str, int] = {}
    corrected: dict[str, int] = {}

    def arm(self, name: ArmName) -> Judged:
        return Judged(self.requests.get(name, 0), self.missed.get(name, 0), self.shares.get(name, 0.0))


_decoder = msgspec.json.Decoder(Counts)


@dataclass(slots=True)
class ArmCounts:
    """`instance`: of this router's process. Raises what redis-py raises."""

    store: Store
    instance: str

    async def write(self, stretches: Iterable[Stretch]) -> None:
        """The sums of these stretches as they are now."""
        async with self.store.client.pipeline(transaction=False) as pipe:
            for one in stretches:
                key = self.store.keys.model_arms(one.running.roles.since)
                told = Counts(dict(one.shares), dict(one.requests), dict(one.missed), dict(one.corrected))
                pipe.hset(key, f"{self.instance}/{one.number}", msgspec.json.encode(told))
                pipe.expire(key, KEPT_S)
            await pipe.execute()

    async def read(self, since: int) -> list[Counts]:
        """Those of all routers since an epoch; what cannot be read is left out."""
        return await read_counts(self.store, since)


async def read_counts(store: Store, since: int) -> list[Counts]:
    """See `ArmCounts.read`."""
    found = await store.client.hgetall(store.keys.model_arms(since))
    return [counts for data in found.values() if (counts := _counts(data)) is not None]


def totals(counts: Iterable[Counts]) -> dict[str, dict[str, float]]:
    """By arm, over all: requests, missed, corrected, and the shares of these."""
    told = list(counts)
    names = [name for name in ("live", "canary", "safe") if any(name in one.requests for one in told)]
    summed = {}
    for name in names:
        requests = sum(one.requests.get(name, 0) for one in told)
        missed = sum(one.missed.get(name, 0) for one in told)
        corrected = sum(one.corrected.get(name, 0) for one in told)
        summed[name] = {
            "requests": requests,
            "missed": missed,
            "missed_share": missed / max(1, requests),
            "corrected": corrected,
            "corrected_share": corrected / max(1, requests),
        }
    return summed


def _counts(data: bytes) -> Counts | None:
    try:
        found = _decoder.decode(data)
    except msgspec.DecodeError:
        return None
    parts = [*found.missed.items(), *found.corrected.items()]
    sums = [*found.requests.values(), *(n for _, n in parts)]
    sound = all(0 <= value <= MOST_REQUESTS for value in sums)
    sound &= all(0.0 <= share <= 1.0 for share in found.shares.values())
    return found if sound and all(n <= found.requests.get(arm, 0) for arm, n in parts) else None

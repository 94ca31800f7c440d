"""What follows the registry beside the router: work at intervals, whatever the store does."""

import logging
from abc import abstractmethod

from redis.exceptions import ResponseError

from kvferry.integrations.redis.background import Background
from kvferry.integrations.redis.connection import STORE_FAILURES, why
from kvferry.integrations.redis.health import Health

log = logging.getLogger("kvferry.models")

REFUSED_S = 5.0


class RegistryTask(Background):
    """`_work` is done every `interval_s`; what the store's failures mean is the same for all."""

    def __init__(self, name: str, health: Health, interval_s: float) -> None:
        super().__init__(name)
        self._health, self._interval_s = health, interval_s
        self._complained = False

    async def close(self) -> None:
        """Stop, after what is being done."""
        await self._end(timeout_s=1.0)

    @abstractmethod
    async def _work(self) -> None:
        """One round. Raises what redis-py raises."""

    async def _step(self) -> float | None:
        try:
            await self._work()
        except ResponseError as error:
            # the store is there and refuses: an ACL without these keys, or a key of another type
            if not self._complained:
                self._complained = True
                log.error("%s: the store refuses, and what runs stays: %s", self._name, why(error))
            return REFUSED_S
        except STORE_FAILURES as error:
            self._health.failure(self._name, error)
            return self._interval_s
        self._health.success(self._name)
        return self._interval_s

"""Looks at how learning goes, says so in the log when something dies, and tells it to the store."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from kvferry.integrations.log.record import DecisionRecord
from kvferry.integrations.redis.background import Background
from kvferry.integrations.redis.connection import STORE_FAILURES, Store
from kvferry.integrations.redis.health import Health
from kvferry.integrations.registry.health_feed import seen_of
from kvferry.integrations.registry.health_store import tell
from kvferry.models.health.finding import Finding, State
from kvferry.models.health.judge import judge
from kvferry.models.health.snapshot import Snapshot
from kvferry.models.health.window import LearningWindow
from kvferry.policy.decision import STRUCTURED
from kvferry.policy.features import FEATURES

log = logging.getLogger("kvferry.learning")

INTERVAL_S = 2.0
TTL_S = 30.0
# What stays bad is said again after so long.
AGAIN_S = 600.0
# What was not bad for so long is over.
CALM_S = 60.0


@dataclass(slots=True)
class Learning:
    """One router's: fed with what is decided and what ends, judged now and then. `version`: the one that is
    live; `evidence`: samples behind the online models; `heard`: other routers whose evidence counts."""

    router: str
    policy: str = ""
    version: Callable[[], str] = lambda: STRUCTURED
    evidence: Callable[[], Mapping[str, int]] = dict
    heard: Callable[[], int] = lambda: 0
    clock: Callable[[], float] = time.monotonic
    snapshot: Snapshot = field(default_factory=Snapshot)
    findings: list[Finding] = field(default_factory=list)
    _window: LearningWindow = field(default_factory=lambda: LearningWindow(FEATURES))
    _said: dict[str, float] = field(default_factory=dict)
    _bad: dict[str, float] = field(default_factory=dict)

    def decided(self) -> None:
        """A request's first decision."""
        self._window.decided()

    def ended(self, record: DecisionRecord) -> None:
        """With its outcome. Shadows are passed over."""
        if record.mode != "shadow":
            self._window.ended(seen_of(record))

    def look(self) -> Snapshot:
        """Sum up, judge, and warn of what has become bad."""
        self.snapshot = msgspec.structs.replace(
            self._window.snapshot(),
            router=self.router,
            time=time.time(),
            policy=self.policy,
            version=self.version(),
            evidence=dict(self.evidence()),
            heard=self.heard(),
        )
        self.findings = judge(self.snapshot)
        self._warn()
        return self.snapshot

    def _warn(self) -> None:
        """Once for what comes and goes."""
        bad = {finding.check: finding for finding in self.findings if finding.state is State.BAD}
        now_s = self.clock()
        self._bad |= dict.fromkeys(bad, now_s)
        for check in [check for check, last_s in self._bad.items() if now_s - last_s >= CALM_S]:
            del self._bad[check], self._said[check]
            log.warning("learning: %s is no longer bad", check)
        for check, finding in bad.items():
            if check not in self._said or now_s - self._said[check] >= AGAIN_S:
                self._said[check] = now_s
                log.warning("learning is BAD: %s. %s", finding.says, finding.do)


class HealthWatch(Background):
    """Every `interval_s`. Without the store the router still judges, warns and exports metrics."""

    def __init__(
        self, store: Store, learning: Learning, health: Health, *, interval_s: float = INTERVAL_S
    ) -> None:
        super().__init__("learning")
        self._store, self._learning, self._health = store, learning, health
        self._interval_s = interval_s

    async def close(self) -> None:
        await self._end(timeout_s=1.0)

    async def _step(self) -> float | None:
        snapshot = self._learning.look()
        try:
            await tell(self._store, snapshot, TTL_S)
        except STORE_FAILURES as error:
            self._health.failure("learning", error)
            return self._interval_s
        self._health.success("learning")
        return self._interval_s

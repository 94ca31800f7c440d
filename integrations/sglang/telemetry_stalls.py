"""How long running decodes are held up by prefills among them, from a worker's own running sums."""

import math
from dataclasses import dataclass, field

from kvferry.integrations.sglang.plugin.wire import LocalLoad

MEMORY_S = 120.0


@dataclass(slots=True, eq=False)
class StallMeter:
    """Seconds of stall per prefilled token: what both sums gained, remembered with a time constant of
    MEMORY_S, over all of a worker's instances (its DP ranks). The ratio of an idle worker stays as it was."""

    stall_s: float = 0.0
    tokens: float = 0.0
    _last: dict[str, LocalLoad] = field(default_factory=dict)
    _last_s: float | None = None

    def read(self, instance: str, told: LocalLoad, time_s: float) -> float:
        """Take in one record; returns the ratio, 0 before any decode was held up."""
        before = self._last.get(instance, LocalLoad())
        if told.stalled_tokens < before.stalled_tokens or told.stall_s < before.stall_s:
            before = LocalLoad()
        self._last[instance] = told
        gained = told.stalled_tokens - before.stalled_tokens
        if gained > 0:
            faded = math.exp(-(time_s - self._last_s) / MEMORY_S) if self._last_s is not None else 0.0
            self._last_s = time_s
            self.tokens = faded * self.tokens + gained
            self.stall_s = faded * self.stall_s + told.stall_s - before.stall_s
        return self.stall_s / self.tokens if self.tokens > 0 else 0.0

"""Telemetry."""

from collections.abc import Sequence

from kvferry.integrations.sglang.plugin.feature import Feature, Hook


class Telemetry(Feature):
    """To be filled in."""

    name = "telemetry"

    @property
    def enabled(self) -> bool:
        return self.settings.telemetry.enabled

    def hooks(self) -> Sequence[Hook]:
        return ()

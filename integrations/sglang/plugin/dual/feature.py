"""DualTransport."""

from collections.abc import Sequence

from kvferry.integrations.sglang.plugin.feature import Feature, Hook


class DualTransport(Feature):
    """To be filled in."""

    name = "dual_transport"

    @property
    def enabled(self) -> bool:
        return self.settings.dual_transport.enabled

    def hooks(self) -> Sequence[Hook]:
        return ()

"""LocalPrefill."""

from collections.abc import Sequence

from kvferry.integrations.sglang.plugin.feature import Feature, Hook


class LocalPrefill(Feature):
    """To be filled in."""

    name = "local_prefill"

    @property
    def enabled(self) -> bool:
        return self.settings.local_prefill.enabled

    def hooks(self) -> Sequence[Hook]:
        return ()

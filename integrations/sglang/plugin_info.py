"""What the plugin in a worker tells in /server_info, as the router reads it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

INFO_KEY = "kvferry"


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """`instances`: one per DP rank, by which its telemetry records are known. `features`: by name, each with
    `on`, and `why` it is not. Without a plugin everything is empty."""

    version: str = ""
    instances: tuple[str, ...] = ()
    features: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> "PluginInfo":
        """From GET /server_info; whatever is not as expected counts as not told."""
        told = [_mapping(_mapping(state).get(INFO_KEY)) for state in _list(info.get("internal_states"))]
        told = [one for one in told if one]
        if not told:
            return cls()
        features = _mapping(told[0].get("features"))
        return cls(
            version=str(told[0].get("version") or ""),
            instances=tuple(str(one["instance"]) for one in told if one.get("instance")),
            features={str(name): _mapping(one) for name, one in features.items()},
        )

    def on(self, feature: str) -> bool:
        """Whether a feature acts in this worker."""
        return self.features.get(feature, {}).get("on") is True

    def why_off(self, feature: str) -> str:
        """Why it does not; "" when it does."""
        if not self.version:
            return "no plugin in this worker"
        if feature not in self.features:
            return "this plugin does not know it"
        return "" if self.on(feature) else str(self.features[feature].get("why") or "it does not say why")

    @property
    def summary(self) -> str:
        """What is on, and what is off and why."""
        told = ((name, self.why_off(name)) for name in self.features)
        return ", ".join(f"{name} off ({why})" if why else f"{name} on" for name, why in told)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()

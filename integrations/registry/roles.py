"""Which version plays which role, and how an operator's command changes that."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from kvferry.policy.decision import STRUCTURED

MAX_CANARY_SHARE = 0.5
CANARY_SHARE = 0.05


class RoleError(ValueError):
    """A command makes no sense with the roles as they are; one line."""


@dataclass(frozen=True, slots=True)
class Roles:
    """Versions by role; "": nobody plays it. `structured` is the version without a learned model.

    `live` decides, but for the share `canary_share` of requests, which `canary` decides. `shadow` decides
    too, and is only logged. `previous` was live before, and is what a rollback returns to. `epoch` counts all
    changes; `since` is that of the last one to live, canary or its share: arms are compared from there on.
    `who`, `command`, `time_s` (Unix seconds, the store's clock): of the last change.
    """

    live: str = STRUCTURED
    canary: str = ""
    canary_share: float = 0.0
    shadow: str = ""
    previous: str = ""
    epoch: int = 0
    since: int = 0
    who: str = ""
    command: str = ""
    time_s: float = 0.0

    @classmethod
    def of(cls, fields: Mapping[bytes, bytes]) -> "Roles":
        """From the store's hash; fields that are missing, or no numbers, are as in the beginning."""
        told = {
            name.decode(errors="replace"): value.decode(errors="replace") for name, value in fields.items()
        }
        number = {name: _number(told.get(name, "")) for name in ("canary_share", "epoch", "since", "time_s")}
        return cls(
            live=told.get("live") or STRUCTURED,
            canary=told.get("canary", ""),
            canary_share=min(MAX_CANARY_SHARE, max(0.0, number["canary_share"])),
            shadow=told.get("shadow", ""),
            previous=told.get("previous", ""),
            epoch=int(number["epoch"]),
            since=int(number["since"]),
            who=told.get("who", ""),
            command=told.get("command", ""),
            time_s=number["time_s"],
        )

    @property
    def learned(self) -> bool:
        """Whether a learned model decides anything."""
        return self.live != STRUCTURED or self.canary not in ("", STRUCTURED)

    @property
    def versions(self) -> tuple[str, ...]:
        """Learned versions that play a role now."""
        named = dict.fromkeys((self.live, self.canary, self.shadow))
        return tuple(version for version in named if version not in ("", STRUCTURED))

    def role_of(self, version: str) -> str:
        """live, canary, shadow, previous or ""."""
        for role in ("live", "canary", "shadow", "previous"):
            if version and getattr(self, role) == version:
                return role
        return ""

    def plain(self) -> dict[str, str | float]:
        """What the audit keeps of them."""
        kept = ("live", "canary", "canary_share", "shadow", "previous")
        return {name: value for name, value in asdict(self).items() if name in kept}

    def text(self) -> str:
        """In words."""
        parts = [f"live is {self.live}"]
        if self.canary:
            parts.append(f"canary is {self.canary} at {100 * self.canary_share:.4g}%")
        if self.shadow:
            parts.append(f"shadow is {self.shadow}")
        return ", ".join(parts)

    def shadowed(self, version: str) -> "Roles":
        """`version` decides beside the others, and is only logged; "": nobody does any more."""
        if not version:
            return self._to("no shadow runs", shadow="")
        if version in (self.live, self.canary):
            raise RoleError(f"{version} is {self.role_of(version)}: it decides already")
        return self._to(f"{version} is shadow already", shadow=version)

    def canaried(self, version: str, share: float) -> "Roles":
        """`version` decides a share of all requests."""
        if not 0.0 < share <= MAX_CANARY_SHARE:
            raise RoleError(f"a canary's share is over 0% and at most {MAX_CANARY_SHARE:.0%}: {share:.4g}")
        if version == self.live:
            raise RoleError(f"{version} is live: it decides already")
        same = f"{version} is canary at {100 * share:.4g}% already"
        return self._but(version, "shadow")._to(same, canary=version, canary_share=share)

    def promoted(self, version: str) -> "Roles":
        """`version` decides; what did is `previous`."""
        if version == self.live:
            raise RoleError(f"{version} is live already")
        return replace(self._but(version, "canary", "shadow"), live=version, previous=self.live)

    def rolled_back(self, *, live: bool = False) -> "Roles":
        """A canary, if there is one, ends; else (or with `live`: and) the previous version decides again."""
        if self.canary and not live:
            return self._to("", canary="", canary_share=0.0)
        if self.live == STRUCTURED and not self.previous:
            raise RoleError(f"nothing to roll back: {STRUCTURED} is live")
        return self.without(self.canary).without(self.live) if self.canary else self.without(self.live)

    def without(self, version: str) -> "Roles":
        """`version`, which is no good, plays no role any more."""
        fresh = self._but(version, "canary", "shadow", "previous")
        if fresh.live == version:
            back = fresh.previous or STRUCTURED
            fresh = replace(fresh._but(back, "canary", "shadow"), live=back, previous="")
        return self if fresh == self else fresh

    def _but(self, version: str, *roles: str) -> "Roles":
        """With these roles empty where it is `version` that plays them."""
        fresh = self
        for role in roles:
            if getattr(fresh, role) == version:
                empty: dict[str, Any] = (
                    {"canary": "", "canary_share": 0.0} if role == "canary" else {role: ""}
                )
                fresh = replace(fresh, **empty)
        return fresh

    def _to(self, same: str, **roles: Any) -> "Roles":
        """With these roles. RoleError, saying `same`, when that changes nothing."""
        fresh = replace(self, **roles)
        if all(getattr(self, name) == value for name, value in roles.items()):
            raise RoleError(same)
        return fresh


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0

"""The audit stream: who changed which role, when, from what to what, and why."""

from dataclasses import dataclass
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One entry. `time_s`: Unix seconds, the store's clock. `command`: add, shadow, canary, promote or
    rollback, each a change of `epoch` but for add; refused: a router could not use `version`, and why is in
    `reason`. `before` and `after`: roles (`Roles.plain`), where they changed."""

    time_s: float
    who: str
    command: str
    version: str = ""
    reason: str = ""
    epoch: int = 0
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None

    @classmethod
    def of(cls, stream_id: bytes, fields: dict[bytes, bytes]) -> "AuditEntry":
        told = {
            name.decode(errors="replace"): value.decode(errors="replace") for name, value in fields.items()
        }
        epoch = told.get("epoch", "")
        return cls(
            time_s=int(stream_id.partition(b"-")[0]) / 1000.0,
            who=told.get("who", ""),
            command=told.get("command", ""),
            version=told.get("version", ""),
            reason=told.get("reason", ""),
            epoch=int(epoch) if epoch.isdecimal() else 0,
            before=_roles(told.get("from", "")),
            after=_roles(told.get("to", "")),
        )

    def changes(self) -> str:
        """What is different after it, in words: `live structured -> m-...`."""
        before, after = self.before or {}, self.after or {}
        told = [
            f"{role} {_shown(before, role)} -> {_shown(after, role)}"
            for role in ("live", "canary", "shadow")
            if _shown(before, role) != _shown(after, role)
        ]
        return ", ".join(told) or self.version


def _shown(roles: dict[str, Any], role: str) -> str:
    version = str(roles.get(role) or "none")
    share = roles.get("canary_share")
    if role == "canary" and roles.get(role) and isinstance(share, int | float):
        version += f" at {100 * share:.4g}%"
    return version


def _roles(text: str) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
    return found if isinstance(found, dict) else None

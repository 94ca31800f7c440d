"""Versions of learned models and their roles, in the store that all routers share."""

from dataclasses import replace
from typing import Any

import msgspec

from kvferry.integrations.redis.connection import Store
from kvferry.integrations.redis.script import Script
from kvferry.integrations.registry.audit import AuditEntry
from kvferry.integrations.registry.roles import Roles
from kvferry.models.residual.artifact import Artifact
from kvferry.models.residual.manifest import ArtifactError, Manifest
from kvferry.policy.decision import STRUCTURED

_CHANGE = Script("models_change.lua")
_ADD = Script("models_add.lua")


class ConflictError(Exception):
    """Somebody else changed the roles meanwhile; `roles` are theirs."""

    def __init__(self, roles: Roles) -> None:
        by = f"{roles.who or 'somebody'} ({roles.command or 'unknown command'})"
        super().__init__(
            f"not done: {by} changed the roles meanwhile, epoch {roles.epoch}: now {roles.text()}"
        )
        self.roles = roles


class UnknownVersionError(Exception):
    """The store does not have a version."""


class Registry:
    """Raises what redis-py raises, beside its own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys = store.keys

    async def add(self, artifact: Artifact, who: str) -> bool:
        """Keep a verified version; False: it is there already."""
        keys = self._keys
        names = [
            keys.model_roles,
            keys.model_versions,
            keys.model_audit,
            keys.model_weights(artifact.version),
        ]
        given = [artifact.version.encode(), artifact.manifest_json, artifact.weights, who.encode()]
        return bool(await _ADD.run(self._store.client, names, given))

    async def versions(self) -> dict[str, Manifest | ArtifactError]:
        """Every version's manifest, or why it is none."""
        found = await self._store.client.hgetall(self._keys.model_versions)
        return {version.decode(errors="replace"): _manifest(version, data) for version, data in found.items()}

    async def named(self, text: str) -> str:
        """The version of that name, or the only one whose name begins so. Raises UnknownVersionError."""
        if text == STRUCTURED:
            return text
        known: list[str] = sorted(
            name.decode(errors="replace")
            for name in await self._store.client.hkeys(self._keys.model_versions)
        )
        if text in known:
            return text
        found = [name for name in known if text and name.startswith(text)]
        if len(found) == 1:
            return found[0]
        if found:
            raise UnknownVersionError(f"{text!r} begins several versions: {', '.join(found[:5])}")
        raise UnknownVersionError(
            f"no version {text!r} in store {self._store.label}: {', '.join(known[-5:]) or 'it has none'}"
        )

    async def fetch(self, version: str) -> tuple[bytes, bytes]:
        """Manifest and weights as they lie there, not verified. Raises UnknownVersionError."""
        async with self._store.client.pipeline(transaction=False) as pipe:
            pipe.hget(self._keys.model_versions, version)
            pipe.get(self._keys.model_weights(version))
            manifest, weights = await pipe.execute()
        if manifest is None or weights is None:
            raise UnknownVersionError(
                f"the {'manifest is' if manifest is None else 'weights are'} not in the store"
            )
        return manifest, weights

    async def artifact(self, version: str) -> Artifact:
        """That version, verified. Raises UnknownVersionError, and ArtifactError also where another model lies
        in its place."""
        found = Artifact.of(*await self.fetch(version))
        if found.version != version:
            raise ArtifactError(f"the store has {found.version} in place of {version}")
        return found

    async def roles(self) -> Roles:
        """As they are now."""
        return Roles.of(await self._store.client.hgetall(self._keys.model_roles))

    async def change(
        self, before: Roles, after: Roles, *, who: str, command: str, version: str = "", reason: str = ""
    ) -> Roles:
        """Make `before` into `after`, in one step with its audit entry. ConflictError when the roles are not
        those of `before` any more, UnknownVersionError when a version in `after` is not there."""
        moved = (before.live, before.canary, before.canary_share) != (
            after.live,
            after.canary,
            after.canary_share,
        )
        after = replace(
            after,
            epoch=before.epoch + 1,
            since=before.epoch + 1 if moved else before.since,
            who=who,
            command=command,
        )
        plain = after.plain()
        change = {
            "epoch": before.epoch,
            "needs": list(after.versions),
            "roles": {
                **{name: str(value) for name, value in plain.items()},
                "since": str(after.since),
                "who": who,
                "command": command,
            },
            "audit": {
                "who": who,
                "command": command,
                "version": version,
                "reason": reason,
                "from": msgspec.json.encode(before.plain()).decode(),
                "to": msgspec.json.encode(plain).decode(),
            },
        }
        names = [self._keys.model_roles, self._keys.model_versions, self._keys.model_audit]
        answer: list[Any] = await _CHANGE.run(self._store.client, names, [msgspec.json.encode(change)])
        if answer[0] == 1:
            return replace(after, time_s=float(answer[2]))
        if answer[0] == 0:
            fields = answer[1]
            raise ConflictError(Roles.of(dict(zip(fields[::2], fields[1::2], strict=True))))
        raise UnknownVersionError(
            f"no version {answer[1].decode(errors='replace')!r} in the store: add it first"
        )

    async def refused(self, version: str, who: str, reason: str, epoch: int) -> None:
        """A router cannot use a version."""
        entry = {"who": who, "command": "refused", "version": version, "reason": reason, "epoch": epoch}
        await self._store.client.xadd(self._keys.model_audit, entry)

    async def audit(self, last: int | None = None) -> list[AuditEntry]:
        """All entries, or the last ones; oldest first."""
        rows = await self._store.client.xrevrange(self._keys.model_audit, count=last)
        return [AuditEntry.of(*row) for row in reversed(rows)]


def _manifest(version: bytes, data: bytes) -> Manifest | ArtifactError:
    try:
        found = Manifest.from_json(data)
    except ArtifactError as error:
        return error
    if found.version.encode() != version:
        return ArtifactError(f"the manifest is that of another version, {found.version}")
    return found

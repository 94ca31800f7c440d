"""Versions and roles in a real Valkey."""

from typing import Any

import pytest

from kvferry.integrations.redis.connection import Store
from kvferry.integrations.registry.roles import Roles
from kvferry.integrations.registry.store import ConflictError, Registry, UnknownVersionError
from kvferry.models.residual.artifact import Artifact
from kvferry.models.residual.manifest import ArtifactError


async def test_a_version_comes_back_as_it_was(registry: Registry, artifact: Any) -> None:
    made = artifact()
    assert await registry.add(made, "ann@host")
    assert not await registry.add(made, "bob@host")
    again = Artifact.of(*await registry.fetch(made.version))
    assert again.manifest == made.manifest
    assert await registry.versions() == {made.version: made.manifest}
    assert [(entry.who, entry.command, entry.version) for entry in await registry.audit()] == [
        ("ann@host", "add", made.version)
    ]


async def test_adding_a_version_again_repairs_it(registry: Registry, store: Store, artifact: Any) -> None:
    made = artifact()
    await registry.add(made, "ann@host")
    await store.client.set(store.keys.model_weights(made.version), b"other")
    with pytest.raises(ArtifactError):
        Artifact.of(*await registry.fetch(made.version))
    assert await registry.add(made, "ann@host")
    Artifact.of(*await registry.fetch(made.version))
    assert "not as it was made" in (await registry.audit())[-1].reason


async def test_what_is_no_manifest_is_listed_with_why(
    registry: Registry, store: Store, artifact: Any
) -> None:
    one, other = artifact(1), artifact(2)
    await store.client.hset(store.keys.model_versions, one.version, one.manifest_json[:50])
    await store.client.hset(store.keys.model_versions, "m-000000000000", other.manifest_json)
    found = await registry.versions()
    assert "cut short" in str(found[one.version])
    assert "another version" in str(found["m-000000000000"])


async def test_a_change_and_its_audit_are_one(registry: Registry, artifact: Any) -> None:
    made = artifact()
    await registry.add(made, "ann@host")
    before = await registry.roles()
    assert before == Roles()
    done = await registry.change(
        before, before.promoted(made.version), who="ann@host", command="promote", version=made.version
    )
    assert await registry.roles() == done
    assert (done.epoch, done.since, done.live, done.previous) == (1, 1, made.version, "structured")
    entry = (await registry.audit())[-1]
    assert (entry.who, entry.command, entry.epoch) == ("ann@host", "promote", 1)
    assert (entry.before, entry.after) == (before.plain(), done.plain())
    assert entry.time_s == pytest.approx(done.time_s, abs=0.01)
    assert entry.changes() == f"live structured -> {made.version}"


async def test_who_comes_late_is_told_who_was_faster(registry: Registry, artifact: Any) -> None:
    one, other = artifact(1), artifact(2)
    for made in (one, other):
        await registry.add(made, "ann@host")
    seen = await registry.roles()
    done = await registry.change(seen, seen.promoted(one.version), who="ann@host", command="promote")
    with pytest.raises(ConflictError) as told:
        await registry.change(seen, seen.promoted(other.version), who="bob@host", command="promote")
    assert str(told.value) == (
        f"not done: ann@host (promote) changed the roles meanwhile, epoch 1: now live is {one.version}"
    )
    assert await registry.roles() == done
    assert [entry.command for entry in await registry.audit()] == ["add", "add", "promote"]


async def test_a_version_that_is_not_there_plays_no_role(registry: Registry) -> None:
    roles = await registry.roles()
    with pytest.raises(UnknownVersionError, match="m-0123"):
        await registry.change(roles, roles.promoted("m-0123"), who="ann@host", command="promote")
    assert await registry.roles() == Roles()
    assert await registry.audit() == []


async def test_arms_are_compared_anew_when_live_or_canary_change(registry: Registry, artifact: Any) -> None:
    one, other = artifact(1), artifact(2)
    for made in (one, other):
        await registry.add(made, "ann@host")
    roles = await registry.roles()
    sinces = []
    for after in (
        lambda roles: roles.shadowed(one.version),
        lambda roles: roles.canaried(one.version, 0.05),
        lambda roles: roles.shadowed(other.version),
        lambda roles: roles.canaried(one.version, 0.1),
        lambda roles: roles.promoted(one.version),
    ):
        roles = await registry.change(roles, after(roles), who="ann@host", command="x")
        sinces.append(roles.since)
    assert roles.epoch == 5
    assert sinces == [0, 2, 2, 4, 5]


async def test_the_beginning_of_a_name_is_enough(registry: Registry, artifact: Any) -> None:
    made = artifact()
    await registry.add(made, "ann@host")
    assert await registry.named(made.version[:5]) == made.version
    assert await registry.named("structured") == "structured"
    for text in ("", "m-zzz"):
        with pytest.raises(UnknownVersionError, match="no version"):
            await registry.named(text)
    await registry.add(artifact(8), "ann@host")
    with pytest.raises(UnknownVersionError, match="begins several versions"):
        await registry.named("m-")

"""`kvferry models`, as an operator has it."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvferry.integrations.learning.model_source import ModelError, load_model
from kvferry.integrations.redis.connection import Store
from kvferry.integrations.redis.embedded import EmbeddedValkey
from kvferry.integrations.registry.store import Registry

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(artifact: Any, tmp_path: Path) -> Callable[[int], str]:
    """folder(seed): where a model lies."""

    def save(seed: int) -> str:
        artifact(seed).save(tmp_path / f"model-{seed}")
        return str(tmp_path / f"model-{seed}")

    return save


def said(call: Call, *arguments: str) -> Any:
    code, out, err = call(*arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_from_a_folder_to_live_and_back(call: Call, folder: Any, artifact: Any) -> None:
    one, other = artifact(1).version, artifact(2).version
    assert said(call, "add", folder(1)) == {"version": one, "added": True}
    assert said(call, "add", folder(1)) == {"version": one, "added": False}
    assert said(call, "shadow", one[:6])["roles"]["shadow"] == one
    assert said(call, "canary", folder(2), "--share", "10%")["roles"]["canary_share"] == 0.1
    done = said(call, "promote", other, "--who", "ann")
    assert (done["roles"]["live"], done["roles"]["canary"], done["roles"]["who"]) == (other, "", "ann")
    assert said(call, "promote", one)["before"]["live"] == other
    assert said(call, "rollback")["roles"]["live"] == other
    assert said(call, "rollback")["roles"]["live"] == "structured"
    told = said(call, "audit")["entries"]
    assert [entry["command"] for entry in told] == [
        "add",
        "shadow",
        "add",
        "canary",
        "promote",
        "promote",
        "rollback",
        "rollback",
    ]
    assert all(entry["who"] for entry in told)
    assert [entry["epoch"] for entry in told] == [0, 1, 1, 2, 3, 4, 5, 6]
    assert said(call, "audit", "-n", "1")["entries"] == told[-1:]


def test_structured_can_be_promoted(call: Call, folder: Any, artifact: Any) -> None:
    said(call, "promote", folder(1))
    done = said(call, "promote", "structured")["roles"]
    assert (done["live"], done["previous"]) == ("structured", artifact(1).version)


def test_tables_fit_and_name_what_matters(call: Call, folder: Any, artifact: Any) -> None:
    said(call, "canary", folder(1), "--who", "somebody-with-a-long-name@a-host-with-a-long-name.example")
    said(call, "shadow", folder(2))
    for arguments, words in (
        (["list"], (artifact(1).version, "canary 5%", "shadow", "structured", "live", "10.0%")),
        (["show", artifact(1).version], ("network", "ttft", "canary 5%", "seed 1", "median error", "10.0%")),
        (["audit"], ("somebody-with", "canary", "add")),
    ):
        code, out, err = call(*arguments)
        assert (code, err) == (0, "")
        assert max(map(len, out.splitlines())) <= 80
        for word in words:
            assert word in out
    code, out, _ = call("promote", artifact(2).version)
    assert out.startswith(f"live is {artifact(2).version}, canary is {artifact(1).version} at 5%")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda manifest, weights: (manifest, weights[:-4]), "changed or cut short"),
        (lambda manifest, weights: (manifest[: len(manifest) // 2], weights), "cut short or damaged"),
        (lambda manifest, weights: (manifest.replace(b"model.v1", b"model.v9"), weights), "update kvferry"),
        (lambda manifest, weights: (b'{"weights": []}', weights), "no model of kvferry"),
    ],
    ids=["tampered", "truncated", "newer", "foreign"],
)
def test_what_is_no_good_is_refused_in_one_line(
    call: Call, folder: Any, spoil: Any, told: str, artifact: Any
) -> None:
    said(call, "promote", folder(1))
    path = Path(folder(2))
    manifest, weights = spoil((path / "model.json").read_bytes(), (path / "weights.safetensors").read_bytes())
    (path / "model.json").write_bytes(manifest)
    (path / "weights.safetensors").write_bytes(weights)
    for command in ("add", "promote", "canary", "shadow"):
        code, out, err = call(command, str(path))
        assert (code, out) == (1, "")
        assert told in err
        assert err.count("\n") == 1
    listed = said(call, "list")
    assert listed["roles"]["live"] == artifact(1).version
    assert [one["version"] for one in listed["versions"]] == [artifact(1).version]


async def test_what_was_damaged_in_the_store_is_not_promoted(
    registry: Registry, store: Store, artifact: Any, call: Call
) -> None:
    made = artifact()
    await registry.add(made, "ann")
    await store.client.set(store.keys.model_weights(made.version), made.weights[:-1])
    code, out, err = await asyncio.to_thread(call, "promote", made.version)
    assert (code, out) == (1, "")
    assert "changed or cut short" in err
    assert (await registry.roles()).epoch == 0


async def test_a_model_under_another_one_s_name_is_none(
    registry: Registry, store: Store, artifact: Any, call: Call, valkey: EmbeddedValkey
) -> None:
    """Both halves are sound and belong together: only the name is not theirs."""
    made, named = artifact(1), "m-ffffffffffff"
    await registry.add(made, "ann")
    await store.client.hset(store.keys.model_versions, named, made.manifest_json)
    await store.client.set(store.keys.model_weights(named), made.weights)
    for command in ("show", "shadow", "canary", "promote"):
        code, out, err = await asyncio.to_thread(call, command, named)
        assert (code, out) == (1, "")
        assert f"the store has {made.version} in place of {named}" in err
        assert err.count("\n") == 1
    with pytest.raises(ModelError, match="in place of"):
        await asyncio.to_thread(load_model, named, valkey.url, "kvferry")
    assert (await registry.roles()).epoch == 0


def test_names_are_shown_as_they_are(call: Call, folder: Any) -> None:
    said(call, "promote", folder(1), "--who", "deploy[bot] [/b]")
    code, out, err = call("audit")
    assert (code, err) == (0, "")
    assert "deploy[bot]" in out
    assert "[/b]" in out


def test_mistakes_are_told_in_one_line(
    call: Call, folder: Any, monkeypatch: pytest.MonkeyPatch, artifact: Any
) -> None:
    version = said(call, "add", folder(1))["version"]
    for arguments, code, told in (
        (["promote", "m-nothing"], 1, "no version 'm-nothing' in store"),
        (["promote", "./nowhere"], 1, "no folder './nowhere'"),
        (["add", "nowhere"], 1, "nowhere: model.json cannot be read"),
        (["canary", version, "--share", "often"], 2, "such as 5% or 0.05"),
        (["canary", version, "--share", "60%"], 1, "at most 50%"),
        (["rollback"], 1, "nothing to roll back"),
        (["shadow", "none"], 1, "no shadow runs"),
        (["show", "structured"], 2, "without a learned model"),
        (["list", "--redis", "redis://127.0.0.1:1"], 1, "does not answer"),
        (["list", "--redis", "http://x"], 1, "http"),
    ):
        found, out, err = call(*arguments)
        assert (found, out) == (code, ""), arguments
        assert told in err
        assert err.count("\n") == 1
    monkeypatch.delenv("KVFERRY_REDIS")
    code, _, err = call("list")
    assert code == 2
    assert "give --redis URL" in err

"""`kvferry local up --plugin`: what the workers get, and what `kvferry serve` is told."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvferry.integrations.cli import local
from kvferry.integrations.cli.errors import UsageError
from kvferry.integrations.sglang.plugin.settings import WorkerSettings


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The options of each cluster that would have been started; it ends at once."""
    seen: list[Any] = []

    @contextmanager
    def running(chosen: Sequence[Any], options: Any, **more: Any) -> Iterator[Any]:
        seen.append(options)
        yield SimpleNamespace(workers=(), log_dir="logs")

    monkeypatch.setattr(local, "running", running)
    monkeypatch.setattr(local, "_watch", lambda cluster: None)
    monkeypatch.setattr(local.signal, "signal", lambda number, handler: None)
    return seen


def up(**flags: Any) -> None:
    plain = {"colocated": 0, "prefill": 1, "decode": 1, "as_json": True, "plugin": False, "redis": None}
    context: Any = SimpleNamespace(get_parameter_source=lambda name: None)
    local.up(context, **{**plain, **flags})


def test_with_its_own_store_every_feature_is_on(
    started: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[bool] = []

    def store() -> Path:
        return Path(str(WorkerSettings.load(dict(started[0].env)).redis).removeprefix("unix://"))

    monkeypatch.setattr(local, "_watch", lambda cluster: there.append(store().exists()))
    up(plugin=True)
    settings = WorkerSettings.load(dict(started[0].env))
    assert settings.telemetry.enabled
    assert settings.dual_transport.enabled
    assert settings.local_prefill.enabled
    assert json.loads(capsys.readouterr().out)["redis"] == settings.redis
    assert there == [True]
    assert not store().exists()


def test_a_given_store_is_used_and_without_the_flag_there_is_none(
    started: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    up(plugin=True, redis="redis://far:6379")
    assert WorkerSettings.load(dict(started[0].env)).redis == "redis://far:6379"
    capsys.readouterr()
    up()
    assert started[1].env == ()
    assert "redis" not in json.loads(capsys.readouterr().out)
    with pytest.raises(UsageError, match="--plugin"):
        up(redis="redis://far:6379")
    assert local.serve_command((), "redis://far:6379") == "kvferry serve \\\n  --redis redis://far:6379"


def test_help_names_the_flag() -> None:
    words = [sys.executable, "-m", "kvferry.integrations.cli.app", "local", "up", "--help"]
    assert "--plugin" in subprocess.run(words, capture_output=True, text=True, check=True).stdout

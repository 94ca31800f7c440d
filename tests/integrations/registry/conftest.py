"""A store of each test's own, small models to keep in it, and the command."""

import asyncio
import importlib.util
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvferry.integrations.cli.app import app
from kvferry.integrations.cli.errors import run
from kvferry.integrations.redis.connection import Store, open_store
from kvferry.integrations.redis.embedded import EmbeddedValkey
from kvferry.integrations.registry.store import Registry

ARTIFACTS = Path(__file__).parents[2] / "models" / "residual" / "artifacts.py"


def _load(name: str, path: Path) -> ModuleType:
    # tests are no package (importmode=importlib), so a helper is loaded by its path
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="session")
def artifact() -> Callable[..., Any]:
    """artifact(seed=n): a small model, another one for every seed."""
    make = _load("registry_artifacts", ARTIFACTS).artifact
    return lambda seed=7, **changes: make(seed=seed, **changes)


@pytest.fixture
def valkey() -> Iterator[EmbeddedValkey]:
    """A server that this test may end and start again, without its data."""
    server = EmbeddedValkey()
    asyncio.run(server.start())
    yield server
    server.stop()


@pytest.fixture
async def store(valkey: EmbeddedValkey) -> AsyncIterator[Store]:
    opened = await open_store(valkey.url)
    yield opened
    await opened.close()


@pytest.fixture
def registry(store: Store) -> Registry:
    return Registry(store)


@pytest.fixture
def eventually() -> Callable[..., Any]:
    """await eventually(condition): until it is true; fails after a generous while."""

    async def wait(condition: Callable[[], Any], what: str = "") -> None:
        deadline = time.monotonic() + 20.0
        while True:
            value = condition()
            if asyncio.iscoroutine(value):
                value = await value
            if value:
                return
            assert time.monotonic() < deadline, f"did not happen in time: {what}"
            await asyncio.sleep(0.01)

    return wait


@pytest.fixture
def call(
    valkey: EmbeddedValkey, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """call("list"): exit code, stdout and stderr of `kvferry models list --redis ...`."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("KVFERRY_REDIS", valkey.url)

    def invoke(*arguments: str) -> tuple[int, str, str]:
        code = run(app, ["models", *arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return invoke

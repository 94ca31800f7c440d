"""A little module that stands for SGLang, hooked by SGLang's own HookRegistry, which imports no SGLang."""

import importlib
import importlib.util
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvferry.integrations.sglang.plugin import probe
from kvferry.integrations.sglang.plugin.feature import Feature, Hook
from kvferry.integrations.sglang.plugin.probe import Pins, source_hash
from kvferry.integrations.sglang.plugin.settings import WorkerSettings

VERSION = "9.9.9"
SOURCE = """
class Worker:
    def add(self, a, b):
        return a + b

    def fail(self, why):
        raise LookupError(why)

    def count_down(self, n):
        return [n, *self.count_down(n - 1)] if n else []

    async def fetch(self, key):
        return key.upper()

    async def refuse(self, key):
        raise LookupError(key)

    def numbers(self):
        yield 1

    async def pages(self):
        yield 1

    @staticmethod
    def double(n):
        return 2 * n


def free(n):
    return n


def push(items):
    items.append(0)
    return len(items)
"""
_numbers = itertools.count()


@dataclass
class Stock:
    """The module and the registry as a worker's process would have them."""

    module: ModuleType
    hooks: ModuleType
    pins: Pins = field(default_factory=lambda: Pins((VERSION,), {}))

    @property
    def worker(self) -> Any:
        return self.module.Worker()

    def path(self, name: str) -> str:
        return f"{self.module.__name__}.{name}"

    def pin(self, *names: str) -> None:
        """Pin these functions as they are now."""
        self.pins.sources.update({self.path(name): source_hash(self.path(name)) for name in names})

    def apply(self) -> None:
        """What SGLang does once all plugins have registered."""
        self.hooks.HookRegistry.apply_hooks()


@pytest.fixture
def stock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stock:
    if importlib.util.find_spec("sglang") is None:
        pytest.skip("SGLang is not installed")
    folder = Path(importlib.util.find_spec("sglang").submodule_search_locations[0])  # type: ignore
    name = f"stockworker{next(_numbers)}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    version, hooks = ModuleType("sglang.version"), _load_hooks(folder)
    version.__dict__["__version__"] = VERSION
    for key, module in {
        "sglang": ModuleType("sglang"),
        "sglang.version": version,
        "sglang.srt": ModuleType("sglang.srt"),
        "sglang.srt.plugins": ModuleType("sglang.srt.plugins"),
        "sglang.srt.plugins.hook_registry": hooks,
    }.items():
        monkeypatch.setitem(sys.modules, key, module)
    found = Stock(importlib.import_module(name), hooks)
    monkeypatch.setattr(probe.Pins, "load", classmethod(lambda cls: found.pins))
    monkeypatch.setitem(sys.modules, name, found.module)
    return found


def _load_hooks(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("hook_registry", folder / "srt/plugins/hook_registry.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Toy(Feature):
    """A feature whose every answer can be set."""

    name = "toy"

    def __init__(self, *hooks: Hook, relies_on: tuple[str, ...] = ()) -> None:
        super().__init__(WorkerSettings.load({}))
        self._hooks = hooks
        self.relies_on = relies_on  # type: ignore[misc]
        self.switch, self.lacks, self.refuses = True, "", ""
        self.described: dict[str, Any] = {}
        self.failures: list[str] = []
        self.started: list[Any] = []

    @property
    def enabled(self) -> bool:
        return self.switch

    def hooks(self) -> Sequence[Hook]:
        return self._hooks

    def missing(self) -> str | None:
        return self.lacks or None

    def start(self, scheduler: Any) -> str | None:
        self.started.append(scheduler)
        return self.refuses or None

    def failed(self, why: str) -> None:
        self.failures.append(why)

    def describe(self) -> dict[str, Any]:
        return self.described


@pytest.fixture
def toy() -> Callable[..., Toy]:
    return Toy

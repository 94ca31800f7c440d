"""Another version, a renamed attribute, a changed source: each is seen, and named."""

import importlib
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from kvferry.integrations.sglang.plugin.probe import Pins, resolve, source_hash, why_not


def test_what_was_tested_is_trusted(stock: Any) -> None:
    stock.pin("Worker.add", "free")
    assert why_not([stock.path("Worker.add"), stock.path("free")]) is None


def test_another_version(stock: Any) -> None:
    stock.pin("free")
    sys.modules["sglang.version"].__dict__["__version__"] = "9.10.0"
    assert why_not([stock.path("free")]) == "SGLang 9.10.0 was not tested, only 9.9.9"
    assert why_not([stock.path("free")], pinned=False) is None


def test_a_renamed_attribute(stock: Any) -> None:
    stock.pin("Worker.add", "free")
    stock.module.Worker.plus = stock.module.Worker.add
    del stock.module.Worker.add
    why = why_not([stock.path("Worker.add"), stock.path("free")])
    assert why is not None
    assert why.startswith(f"{stock.path('Worker.add')} is not there (")
    assert "free" not in why
    assert why_not([stock.path("Worker.add")], pinned=False) is not None


def test_a_changed_source(stock: Any, tmp_path: Path) -> None:
    stock.pin("Worker.add", "free")
    (tmp_path / "patched.py").write_text("def free(n):\n    return n + 0\n")
    stock.module.free = importlib.import_module("patched").free
    why = why_not([stock.path("Worker.add"), stock.path("free")])
    assert why is not None
    assert why.startswith(f"the source of {stock.path('free')} has changed (")
    assert "Worker" not in why


def test_every_fault_is_named(stock: Any) -> None:
    stock.pin("free")
    why = why_not([stock.path("Worker.add"), stock.path("nothing"), "nowhere.at.all", stock.path("free")])
    assert why is not None
    first, second, third = why.split("; ")
    assert first == f"{stock.path('Worker.add')} has no pin"
    assert "nothing is not there" in second
    assert "nowhere.at.all is not there" in third


def test_a_module_that_cannot_be_imported_is_not_there(stock: Any, tmp_path: Path) -> None:
    (tmp_path / "brokenmodule.py").write_text("raise RuntimeError('no\\ndriver')\n")
    assert why_not(["brokenmodule.f"]) == "brokenmodule.f is not there (no driver)"


def test_a_module_that_lacks_a_library_says_so(stock: Any, tmp_path: Path) -> None:
    """Not "no such attribute" of its package."""
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "conn.py").write_text("import libnowhere\n")
    assert why_not(["pack.conn.Manager.send"]) == (
        "pack.conn.Manager.send is not there (No module named 'libnowhere')"
    )


def test_without_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sglang", None)
    monkeypatch.delitem(sys.modules, "sglang.version", raising=False)
    why = why_not([], Pins(("1",), {}))
    assert why is not None
    assert why.startswith("SGLang cannot be imported")


def test_a_hash_is_of_the_function_below_its_wrappers(stock: Any) -> None:
    before = source_hash(stock.path("free"))
    stock.hooks.HookRegistry.register(stock.path("free"), lambda result, n: None)
    stock.apply()
    assert source_hash(stock.path("free")) == before


def test_a_hash_is_of_the_source_alone(stock: Any, tmp_path: Path) -> None:
    body = "def f():\n    return 1\n"
    (tmp_path / "one.py").write_text(body)
    (tmp_path / "two.py").write_text("# a line above\n\n\n" + body)
    (tmp_path / "three.py").write_text(textwrap.dedent(body).replace("1", "2"))
    assert source_hash("one.f") == source_hash("two.f") != source_hash("three.f")


def test_resolve_finds_nested_names() -> None:
    assert resolve("collections.OrderedDict.fromkeys")
    with pytest.raises(ImportError):
        resolve("nowhere.f")
    with pytest.raises(AttributeError):
        resolve("collections.nothing")


def test_the_pins_can_be_read() -> None:
    pins = Pins.load()
    assert pins.versions
    assert all(len(value) == 16 for value in pins.sources.values())

"""The plugin lives in other people's environments: it may import next to nothing."""

import json
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
OURS = (
    "kvferry.models.toml_file",
    "kvferry.configs",
    "kvferry.integrations.redis.url",
    "kvferry.integrations.redis.keys",
)
PLUGIN = "kvferry.integrations.sglang.plugin"


def run(code: str) -> list[str]:
    """In a Python that has the standard library, this project and the extra `worker`: what it prints."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = [requirement.split(">")[0] for requirement in extras["worker"]]
    prelude = f"""
        import importlib, importlib.abc, json, pkgutil, sys
        allowed = set(sys.stdlib_module_names) | {{"kvferry", *{names!r}}}
        class Block(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] not in allowed:
                    raise ModuleNotFoundError(f"no {{name}} here", name=name)
        sys.meta_path.insert(0, Block())
        package = importlib.import_module("{PLUGIN}")
        modules = [m.name for m in pkgutil.walk_packages(package.__path__, "{PLUGIN}.")]
    """
    words = [sys.executable, "-c", textwrap.dedent(prelude) + textwrap.dedent(code)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    found: list[str] = json.loads(ended.stdout)
    return found


@pytest.fixture(scope="module")
def modules() -> list[str]:
    folder = ROOT / "integrations/sglang/plugin"
    files = [file.relative_to(folder).with_suffix("") for file in folder.rglob("*.py")]
    return [".".join((PLUGIN, *file.parts)) for file in files if file.name != "__init__"]


def test_every_module_can_be_imported(modules: list[str]) -> None:
    code = "for name in " + repr(modules) + ": importlib.import_module(name)\n"
    code += "print(json.dumps(sorted(sys.modules)))"
    loaded = [name for name in run(code) if name.startswith("kvferry.")]
    assert set(modules) <= set(loaded)
    parents = {name.rsplit(".", n)[0] for name in (*modules, *OURS) for n in range(1, 5)}
    assert [name for name in loaded if name not in {*modules, *OURS, *parents}] == []


def test_every_feature_can_be_built_and_names_its_hooks() -> None:
    """Without a GPU, SGLang or a transport library: what is lacking is a reason, no error."""
    code = f"""
        from {PLUGIN}.entry import features
        from {PLUGIN}.settings import WorkerSettings
        built = features(WorkerSettings.load({{"KVFERRY_REDIS": "redis://h"}}))
        print(json.dumps([type(f).__name__ for f in built if isinstance(f.hooks(), (tuple, list))]))
    """
    assert run(code) == ["DualTransport", "LocalPrefill", "Telemetry"]


def test_loading_it_in_a_process_without_schedulers_does_nothing() -> None:
    code = f"""
        from {PLUGIN}.entry import load
        load()
        print(json.dumps([name for name in sys.modules if name.startswith("sglang")]))
    """
    assert run(code) == []

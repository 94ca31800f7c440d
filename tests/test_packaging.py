"""The wheel: complete, and of use where neither torch nor SGLang is installed."""

import json
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("configs", "integrations", "models", "policy")


def run(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    words = [str(part) for part in command]
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=cwd)


def test_pyproject_names_every_package() -> None:
    """A folder that is not listed would be missing from the wheel only, where nobody looks."""
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {
        "kvferry." + ".".join(file.parent.relative_to(ROOT).parts)
        for part in PARTS
        for file in (ROOT / part).rglob("*.*")
        if file.suffix in (".py", ".toml") and "__pycache__" not in file.parts
    }
    assert found == listed


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what git would check out, so that nothing lying about gets in."""
    source = tmp_path_factory.mktemp("source")
    files = run("git", "-C", ROOT, "ls-files", "-co", "--exclude-standard").stdout.splitlines()
    for name in files:
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    out = tmp_path_factory.mktemp("wheel")
    built = run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", out, source)
    assert built.returncode == 0, built.stderr
    (found,) = out.glob("kvferry-*.whl")
    return found


def test_wheel_holds_every_source_file(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        f"kvferry/{file.relative_to(ROOT)}"
        for part in PARTS
        for file in (ROOT / part).rglob("*")
        if file.suffix in (".py", ".toml", ".lua", ".txt", ".typed") and "__pycache__" not in file.parts
    }
    assert wanted <= names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]


def test_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    installed = run(home / "bin" / "pip", "install", "-q", wheel)
    assert installed.returncode == 0, installed.stderr
    kvferry = home / "bin" / "kvferry"
    helped = run(kvferry, "--help", cwd=tmp_path)
    assert helped.returncode == 0, helped.stderr
    assert "serve" in helped.stdout
    sized = run(kvferry, "size", "Qwen3-32B", "--tokens", "1000", "--json", cwd=tmp_path)
    assert json.loads(sized.stdout)["bytes"] == 262144 * 1000
    packages = run(home / "bin" / "pip", "list", "--format", "json").stdout
    heavy = {"torch", "sglang", "transformers", "matplotlib", "pyarrow"}
    assert not heavy & {package["name"].lower() for package in json.loads(packages)}
    local = run(kvferry, "local", "up", cwd=tmp_path)
    assert local.returncode == 1
    assert len(local.stderr.strip().splitlines()) == 1, local.stderr
    assert "sglang" in local.stderr.lower()


def test_the_plugin_needs_no_more_than_its_extra(wheel: Path, tmp_path: Path) -> None:
    """As docs/operate.md installs it in a worker's environment."""
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["worker"]
    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    for words in (["--no-deps", wheel], extra):
        installed = run(home / "bin" / "pip", "install", "-q", *words)
        assert installed.returncode == 0, installed.stderr
    checked = run(home / "bin" / "kvferry", "worker", "check", cwd=tmp_path)
    assert checked.returncode == 1, checked.stderr
    assert json.loads(checked.stdout)["wrong"].startswith("SGLang cannot be imported: ")
    served = run(home / "bin" / "kvferry", "serve", cwd=tmp_path)
    assert served.returncode == 1
    assert len(served.stderr.splitlines()) == 1, served.stderr
    assert "is not installed: pip install kvferry" in served.stderr

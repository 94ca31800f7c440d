"""What the tests of learning share: records, and files of them."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from kvferry.integrations.cli.app import app
from kvferry.integrations.cli.errors import run
from kvferry.integrations.log.codec import write_record
from kvferry.integrations.log.record import DecisionRecord

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# tests are no package (importmode=importlib), so a helper beside them is loaded by its path
if "learnedrecords" not in sys.modules:
    spec = importlib.util.spec_from_file_location(
        "learnedrecords", Path(__file__).parent / "learnedrecords.py"
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules["learnedrecords"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["learnedrecords"])


@pytest.fixture(scope="session")
def records() -> list[DecisionRecord]:
    return [sys.modules["learnedrecords"].decided(n) for n in range(60)]


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    def write(records: list[DecisionRecord], name: str = "log.jsonl") -> Path:
        file = tmp_path / name
        file.write_bytes(b"".join(write_record(record) + b"\n" for record in records))
        return file

    return write


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):  # type: ignore[no-untyped-def]
    monkeypatch.setenv("KVFERRY_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("KVFERRY_REDIS", raising=False)

    def invoke(*arguments: str) -> tuple[int, str, str]:
        code = run(app, list(arguments))
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return invoke

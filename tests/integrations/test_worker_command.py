"""`kvferry worker check`: what it prints of a report, and the report of the SGLang installed here."""

import importlib.util
import json
import sys
from typing import Any

import pytest

from kvferry.integrations.cli import worker
from kvferry.integrations.cli.app import app
from kvferry.integrations.cli.errors import run

LONG = "the source of sglang.srt.managers.scheduler.Scheduler._add_request_to_queue has changed (a, tested b)"


def told(**changes: Any) -> dict[str, Any]:
    features = {
        "telemetry": {"enabled": True, "works": True, "why": ""},
        "dual_transport": {"enabled": False, "works": False, "why": LONG},
    }
    return {"kvferry": "1.0", "sglang": "0.9", "wrong": "", "features": features, **changes}


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`reports(told)`: what the environment is found to be."""

    def give(report: dict[str, Any], stubs: bool = False) -> None:
        present = {"sglang", "torch"} | (set() if stubs else {"triton"})
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in present else None)
        monkeypatch.setattr(worker, "_report", lambda stubs: report)

    return give


def test_a_table_in_80_columns(reports: Any, capsys: pytest.CaptureFixture[str]) -> None:
    reports(told())
    assert run(app, ["worker", "check"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    cells = [line.split("│")[4].strip() for line in out.splitlines() if line.count("│") > 4]
    assert "".join("".join(cells).split()) == "".join(LONG.split()), "wrapped, not cut"
    assert "stand-ins" not in out


def test_that_stand_ins_were_used_is_said(reports: Any, capsys: pytest.CaptureFixture[str]) -> None:
    reports(told(), stubs=True)
    assert run(app, ["worker", "check"]) == 0
    assert "triton is missing" in capsys.readouterr().out


def test_one_object_for_machines(reports: Any, capsys: pytest.CaptureFixture[str]) -> None:
    reports(told())
    assert run(app, ["worker", "check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {**told(), "stubs": False}


def test_something_switched_on_that_would_not_work(reports: Any, capsys: pytest.CaptureFixture[str]) -> None:
    report = told()
    report["features"]["telemetry"] = {"enabled": True, "works": False, "why": "no KVFERRY_REDIS"}
    reports(report)
    assert run(app, ["worker", "check", "--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["features"]["telemetry"]["why"] == "no KVFERRY_REDIS"
    assert captured.err.strip().endswith("switched on, but would not work: telemetry")


def test_nothing_can_work(reports: Any, capsys: pytest.CaptureFixture[str]) -> None:
    reports(told(wrong="KVFERRY_TELEMETRY=2: give 0 or 1", features={}))
    assert run(app, ["worker", "check"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "KVFERRY_TELEMETRY=2" in captured.err


def test_without_sglang(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert run(app, ["worker", "check"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert "SGLang is not installed" in captured.err


def test_a_check_that_dies_says_how(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(worker, "CHECK", "kvferry.no.such.module")
    assert run(app, ["worker", "check"]) == 1
    err = capsys.readouterr().err
    assert "ended with 1" in err
    assert len(err.splitlines()) == 1


@pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed")
def test_the_sglang_installed_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All features, switched on or not, fit the release that the tests run with."""
    monkeypatch.setenv("KVFERRY_REDIS", "redis://localhost")
    for name in ("KVFERRY_DUAL_TRANSPORT", "KVFERRY_LOCAL_PREFILL"):
        monkeypatch.setenv(name, "1")
    for name in ("KVFERRY_TELEMETRY", "KVFERRY_WORKER_CONFIG", "SGLANG_PLUGINS"):
        monkeypatch.delenv(name, raising=False)
    before = set(sys.modules)
    code = run(app, ["worker", "check", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert {name: one["why"] for name, one in report["features"].items()} == {
        "telemetry": "",
        "dual_transport": "",
        "local_prefill": "",
    }
    assert code == 0
    assert report["stubs"] is (importlib.util.find_spec("triton") is None)
    assert not {name for name in set(sys.modules) - before if name.startswith("sglang")}, "not in here"

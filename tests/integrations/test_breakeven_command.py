"""`kvferry breakeven`: the table, the object, the picture and the errors."""

import json
import sys
from pathlib import Path

import pytest

from kvferry.integrations.cli.app import app
from kvferry.integrations.cli.errors import run


def test_no_arguments_are_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["breakeven"]) == 0
    out = capsys.readouterr().out
    assert "Qwen3-32B, H200 TP 2" in out
    assert "Assumed:" in out
    assert "8 decodes each" in out
    assert max(map(len, out.splitlines())) <= 80


def test_one_object_with_the_assumptions(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["breakeven", "--json", "--running-decodes", "4", "--hardware", "h100"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["assumptions"]["running_decodes"] == 4
    assert answer["assumptions"]["decode_batch"] == 8
    assert answer["assumptions"]["hardware"] == "h100"
    tokens = {name: path["prompt_tokens"] for name, path in answer["paths"].items()}
    assert tokens["ib_ndr400_gdr_per_nic"] < tokens["tcp_25g"]


def test_never_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["breakeven", "--path", "tcp_25g", "--running-decodes", "0", "--json"]
    assert run(app, args) == 0
    assert json.loads(capsys.readouterr().out)["paths"]["tcp_25g"]["prompt_tokens"] is None


@pytest.mark.parametrize("decodes", ["0", "8"])
def test_a_picture(tmp_path: Path, decodes: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "breakeven.png"
    assert run(app, ["breakeven", "--png", str(file), "--running-decodes", decodes, "--path", "all"]) == 0
    assert file.read_bytes().startswith(b"\x89PNG")


def test_a_missing_matplotlib_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    assert run(app, ["breakeven", "--png", str(tmp_path / "a.png")]) == 1
    assert "kvferry[plot]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["Qwen3-33B"], 1, "Qwen3-32B"),
        (["Qwen3-8B"], 1, "[[speed]]"),
        (["--hardware", "V100"], 1, "h200 TP2"),
        (["--path", "smoke"], 2, "tcp_100g"),
        (["--tp", "0"], 2, "--tp"),
        (["--dtype", "int3"], 2, "int3"),
        (["--png", "/nowhere/at/all.png"], 1, "/nowhere/at/all.png"),
        (["--config", "/nowhere.toml"], 1, "/nowhere.toml"),
    ],
)
def test_bad_input_gets_one_line(
    args: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(app, ["breakeven", *args]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert len(captured.err.splitlines()) == 1

"""`kvferry size` against the table it must equal, and what it answers to bad input."""

import csv
import json
from pathlib import Path

import pytest

from kvferry.integrations.cli.app import app
from kvferry.integrations.cli.errors import run

TABLE = Path(__file__).resolve().parents[3] / "shared" / "data" / "models" / "kv_bytes_per_token.csv"


def rows() -> list[dict[str, str]]:
    if not TABLE.is_file():
        return []
    with TABLE.open() as file:
        return list(csv.DictReader(file))


def sized(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, int]:
    assert run(app, ["size", *args, "--json"]) == 0
    answer: dict[str, int] = json.loads(capsys.readouterr().out)
    return answer


@pytest.mark.skipif(not rows(), reason="../shared/data is not on this machine")
@pytest.mark.parametrize("row", rows(), ids=lambda row: row["model"])
def test_every_row_of_the_table(row: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    for name in {row["model"], *row["model"].split(" / ")}:
        at_8k = sized(capsys, name, "--tokens", "8192")
        at_32k = sized(capsys, name, "--tokens", "32768")
        fp8 = sized(capsys, name, "--tokens", "1", "--dtype", "fp8_e4m3")
        assert at_8k["bytes_per_token"] == int(row["bytes_per_token_bf16"])
        assert fp8["bytes_per_token"] == int(row["bytes_per_token_fp8"])
        assert at_8k["bytes"] == at_8k["moved_bytes"] == int(row["bf16_bytes_at_8k"])
        assert at_32k["bytes"] == int(row["bf16_bytes_at_32k"])
        assert at_8k["window_bytes"] == 2 * int(row["window"]) * int(row["window_elems_per_token"])


def test_the_object_has_the_keys_that_machines_read(capsys: pytest.CaptureFixture[str]) -> None:
    answer = sized(capsys, "Qwen3-235B-A22B", "--tokens", "100", "--tp", "8", "--page-size", "64")
    assert answer["pages"] == 2
    assert answer["bytes"] == 128 * 192_512
    assert answer["moved_bytes"] == 2 * answer["bytes"]
    known = {"model", "attention", "bytes_per_token", "window_bytes", "fixed_bytes", "tokens", "bytes"}
    assert known <= set(answer)


def test_a_config_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 512}))
    assert sized(capsys, str(file), "--tokens", "10")["bytes"] == 10 * 4 * 2 * 512 * 2
    assert sized(capsys, str(tmp_path), "--tokens", "10")["bytes"] == 10 * 4 * 2 * 512 * 2


def test_people_get_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["size", "Qwen3-32B", "--tokens", "8192"]) == 0
    out = capsys.readouterr().out
    assert "2.00 GiB" in out
    assert "2,147,483,648" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["Qwen3-32B", "--tokens", "-1"], 2, "--tokens"),
        (["Qwen3-32B", "--tokens", "1", "--tp", "0"], 2, "--tp"),
        (["Qwen3-32B", "--tokens", "1", "--page-size", "0"], 2, "--page-size"),
        (["Qwen3-32B", "--tokens", "1", "--dtype", "int3"], 2, "int3"),
        (["Qwen3-32B", "--tokens", "many"], 2, "--tokens"),
        (["Qwen3-32B"], 2, "--tokens"),
        (["Qwen3-32B", "--tokens", "1", "--colour"], 2, "--colour"),
        (["Qwen3-33B", "--tokens", "1"], 1, "Qwen3-32B"),
        (["./nowhere/config.json", "--tokens", "1"], 1, "nowhere"),
    ],
)
def test_bad_input_gets_one_line(
    args: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(app, ["size", *args]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert len(captured.err.splitlines()) == 1

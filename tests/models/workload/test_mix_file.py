"""Mixes from TOML."""

from pathlib import Path

import numpy as np
import pytest

from kvferry.models.toml_file import ConfigError
from kvferry.models.workload.reader import read
from kvferry.models.workload.trace_file import TraceError

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:{row // 60:02}:{row % 60:02},7777,3\n" for row in range(600)
)
MIX = """
rate_rps = 12
[[part]]
source = "azure.csv"
weight = 2
[[part]]
source = "steady"
"""


def written(folder: Path, text: str) -> Path:
    (folder / "azure.csv").write_text(TRACE)
    (folder / "both.toml").write_text(text)
    return folder / "both.toml"


def test_parts_come_at_once_in_their_shares(tmp_path: Path) -> None:
    file = written(tmp_path, MIX)
    workload = read(file, duration_s=100)
    assert workload.name == "both"
    assert (workload.prompt_tokens == 7777).sum() == 800  # the trace, repeated
    assert (workload.prompt_tokens != 7777).sum() == pytest.approx(400, rel=0.2)
    half = read(file, duration_s=100, rate_rps=6)
    assert (half.prompt_tokens == 7777).sum() == 400
    assert np.array_equal(read(file, duration_s=100).arrival_s, workload.arrival_s)


def test_without_a_duration_no_part_is_repeated(tmp_path: Path) -> None:
    workload = read(written(tmp_path, MIX))
    assert (workload.prompt_tokens == 7777).sum() == 600
    assert len(workload) == 900
    assert workload.rate_rps == pytest.approx(12, rel=0.02)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("rate_rps = 12", "", "'rate_rps' is missing"),
        ("rate_rps = 12", "rate_rps = 0", "above 0"),
        ("weight = 2", "weight = 0", "part 1: weight must be above 0"),
        ("weight", "wieght", "part 1: unknown key 'wieght'"),
        ("azure.csv", "both.toml", "part 1: both.toml is a mix itself"),
        ("source", "file", "part 1: unknown key 'file'"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    file = written(tmp_path, MIX.replace(old, new))
    with pytest.raises(ConfigError) as failure:
        read(file)
    assert str(file) in str(failure.value)
    assert said in str(failure.value)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none\.csv"):
        read(written(tmp_path, MIX.replace("azure.csv", "none.csv")))

import csv
import gzip
from importlib import import_module
from pathlib import Path

import pytest

from kvferry.models.simulator import step_catalogue
from kvferry.models.simulator.step_catalogue import (
    UnknownStepsError,
    find_engine,
    find_steps,
    kv_room_tokens,
    load_engines,
)
from kvferry.models.simulator.step_fit import fit_steps
from kvferry.models.toml_file import ConfigError

ROOT = Path(__file__).parents[3]
GRID = ROOT.parent / "shared" / "data" / "perf" / "aic_grid_sglang.csv.gz"

NEEDED = [
    ("Qwen3-32B", "h200", 2),
    ("Qwen3-32B", "h200", 4),
    ("Qwen3-32B", "h100", 2),
    ("Qwen3-32B", "b200", 2),
    ("Llama-3.1-70B", "h200", 4),
    ("Llama-3.1-70B", "h100", 4),
    ("DeepSeek-V3", "h200", 8),
    ("Llama-3.1-8B", "h200", 1),
    ("Llama-3.1-8B", "h100", 1),
    ("Llama-3.1-8B", "l40s", 1),
    ("Qwen3-30B-A3B", "h200", 1),
]


@pytest.mark.parametrize(("model", "gpu", "tp"), NEEDED)
def test_the_shipped_engines_are_sound(model: str, gpu: str, tp: int) -> None:
    entry = find_engine(model, gpu, tp)
    assert max(p90 for _, p90 in entry.errors.values()) < 0.06
    assert "aiconfigurator-core 0.12.0" in entry.source
    assert "GB" in entry.kv_room
    assert kv_room_tokens(model, gpu, tp) > 100_000
    times = find_steps(model, gpu, tp)
    for table in (times.decode_table_s, times.tokens_table_s):
        assert table == sorted(table)
        assert 0.001 < table[0] < 0.05
    assert times.decode_s(1) <= times.tokens_s(32)


def test_the_figures_everything_is_held_against() -> None:
    steps = find_steps("Qwen/Qwen3-32B", "h200", 2)
    context = 64 * 4096
    decodes_s = steps.decode_s(64) + steps.context_s * context
    chunk_s = steps.tokens_s(2048 + 64) + steps.attention_s * 2048 * 4096 / 2
    chunk_s += steps.context_s * context + steps.mixed_s
    assert decodes_s == pytest.approx(0.0191, rel=0.03)
    assert chunk_s == pytest.approx(0.1245, rel=0.03)
    assert steps.attention_s == pytest.approx(1.727e-9, rel=0.1)
    assert steps.context_s == pytest.approx(2.986e-8, rel=0.03)


def test_names_are_matched_as_elsewhere_and_steps_are_baked_once() -> None:
    assert find_engine("meta-llama/Llama-3.3-70B-Instruct", "NVIDIA H100 80GB HBM3", 4).tp == 4
    assert find_engine("DeepSeek-R1", "h200_sxm", 8).model == "deepseek-ai/DeepSeek-V3"
    assert find_steps("Qwen3-32B", "h200", 2) is find_steps("Qwen3-32B", "h200", 2)


def test_a_gpu_without_kernel_tables_is_known_from_a_log() -> None:
    entry = find_engine("meta-llama/Meta-Llama-3.1-8B", "NVIDIA GeForce RTX 4090", 1)
    assert entry.kv_room_tokens == 41_408
    assert "vLLM" in entry.source
    assert entry.errors["decode"][0] < 0.05


def test_fp8_weights_are_another_engine() -> None:
    assert find_engine("nvidia/Llama-3.1-70B-Instruct-FP8", "h100", 4).model.endswith("FP8")
    assert not find_engine("Llama-3.1-70B", "h100", 4).model.endswith("FP8")
    with pytest.raises(UnknownStepsError, match="Qwen3-32B-FP8 on h200 TP1"):
        find_steps("Qwen3-32B", "h200", 1)


def test_an_unknown_engine_is_refused_with_those_that_are_there() -> None:
    with pytest.raises(
        UnknownStepsError, match="no measured steps for Qwen3-32B on h300 TP2: known are Qwen3"
    ):
        find_steps("Qwen3-32B", "h300", 2)
    with pytest.raises(UnknownStepsError, match="deepseek-ai/DeepSeek-V3"):
        kv_room_tokens("nobody/nothing", "h200", 1)


@pytest.mark.parametrize(
    "knots", ["[[1, 2.0]]", "[[2, 1.0], [1, 2.0]]", "[[1, 0.0], [2, 1.0]]", '"fast"', "7"]
)
def test_broken_knots_are_refused(knots: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "engines.toml"
    file.write_text(
        f'[[engine]]\nmodel = "m"\ngpu = "g"\ntp = 1\ndecode = {knots}\ntokens = [[1, 1.0], [2, 2.0]]\n'
        "attention_ns = 1\ncontext_ns = 1\nmixed_ms = 1\nkv_room_tokens = 1\n"
    )
    monkeypatch.setattr(step_catalogue, "packaged", lambda name: file)
    load_engines.cache_clear()
    try:
        with pytest.raises(ConfigError, match="engine 'm': decode must be at least two knots"):
            load_engines()
    finally:
        load_engines.cache_clear()


@pytest.mark.skipif(not GRID.is_file(), reason="the latency grid is not at ../shared/data/perf")
def test_the_shipped_coefficients_are_what_fitting_the_grid_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    fit_engines = import_module("fit_engines")
    with gzip.open(GRID, "rt") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == "Qwen/Qwen3-32B" and row["tp"] == "2"]
    found = fit_engines.samples([row for row in rows if row["system"] == "h200_sxm"])
    fit, shipped = fit_steps(found), find_engine("Qwen3-32B", "h200", 2)
    assert fit.attention_s == pytest.approx(shipped.fit.attention_s, rel=1e-3)
    assert fit.context_s == pytest.approx(shipped.fit.context_s, rel=1e-3)
    for mine, theirs in ((fit.decode_s, shipped.fit.decode_s), (fit.tokens_s, shipped.fit.tokens_s)):
        assert [count for count, _ in mine] == [count for count, _ in theirs]
        assert [s for _, s in mine] == pytest.approx([s for _, s in theirs], rel=1e-3)
    assert fit_engines.kv_room("Qwen/Qwen3-32B", "h200", 2)[0] == shipped.kv_room_tokens

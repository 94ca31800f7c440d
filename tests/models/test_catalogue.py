"""The packaged catalogues against the data they come from, and what a user's own file may do."""

import csv
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kvferry.models.catalogue import (
    ConfigError,
    UnknownModelError,
    UnknownSpeedError,
    default_path_class,
    find_model,
    find_shape,
    find_speed,
    load_links,
    load_models,
    load_rules,
    load_speeds,
)

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="../shared/data is not on this machine")


@needs_shared
def test_links_carry_the_catalogue_csv() -> None:
    links = load_links()
    with (SHARED / "links" / "link_catalogue_defaults.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows
    for row in rows:
        link = links[row["path"]]
        assert link.alpha_s == pytest.approx(float(row["alpha_us"]) * 1e-6)
        assert link.beta_bytes_per_s == pytest.approx(float(row["beta_GBps"]) * 1e9)
        assert link.beta_low_bytes_per_s == pytest.approx(float(row["beta_low"]) * 1e9)
        assert link.beta_high_bytes_per_s == pytest.approx(float(row["beta_high"]) * 1e9)
        assert link.gamma_s_per_descriptor == pytest.approx(float(row["per_descriptor_us"] or 0) * 1e-6)


def test_every_figure_has_a_source() -> None:
    assert all(link.source and link.confidence and link.kind for link in load_links().values())
    assert all(model.source for model in load_models())
    assert all(prior.source and prior.errors for prior in load_speeds())


def test_bounds_enclose_the_bandwidth() -> None:
    for link in load_links().values():
        assert 0 < link.beta_low_bytes_per_s <= link.beta_bytes_per_s <= link.beta_high_bytes_per_s


def test_names_of_models_are_not_ambiguous() -> None:
    seen: dict[str, str] = {}
    for model in load_models():
        for name in model.names:
            assert seen.setdefault(name.lower(), model.label) == model.label
            assert find_model(name) == model


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("Qwen/Qwen3-32B", "Qwen3-32B"),
        ("qwen3-32b", "Qwen3-32B"),
        ("Qwen/Qwen3-32B-FP8", "Qwen3-32B"),
        ("meta-llama/Llama-3.3-70B-Instruct", "Llama-3.1-70B / Llama-3.3-70B"),
        ("DeepSeek-R1", "DeepSeek-V3 / R1"),
        ("GLM-4.5", "GLM-4.5 (355B)"),
        ("glm-4.5-air", "GLM-4.5-Air (106B)"),
        ("Mistral-7B-Instruct-v0.3", "Mistral-7B-v0.3 (no SWA)"),
        ("google/gemma-3-27b-it", "Gemma-3-27B"),
    ],
)
def test_a_model_is_found_by_its_names(name: str, label: str) -> None:
    assert find_shape(name).name == label


@pytest.mark.parametrize("name", ["Qwen3-33B", "someone/Qwen3-32B", "gpt-4", ""])
def test_an_unknown_model_names_the_nearest_and_what_to_do(name: str) -> None:
    with pytest.raises(UnknownModelError, match=r"nearest known are .+, .+, .+; .*config\.json"):
        find_shape(name)


def test_a_path_wins_over_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}
    (tmp_path / "Qwen3-32B").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownModelError, match="no config"):
        find_shape("Qwen3-32B")
    (tmp_path / "Qwen3-32B" / "config.json").write_text(json.dumps(config))
    assert find_shape("Qwen3-32B").layers == 2


@pytest.mark.parametrize(
    ("transport", "same_host", "gpu", "rdma", "expected"),
    [
        ("nixl", True, "", False, "shared_memory_cma"),
        ("mooncake", True, "", False, "loopback_tcp_mooncake"),
        ("nixl", True, "NVIDIA H200", False, "nvlink4_h100_h200_p2p"),
        ("nixl", True, "NVIDIA GB200", False, "nvlink5_nvl72_mnnvl"),
        ("nixl", True, "NVIDIA L40S", False, "pcie4_x16_p2p"),
        ("mooncake", False, "NVIDIA H200", True, "ib_ndr400_gdr_per_nic"),
        ("mooncake", False, "NVIDIA H200", False, "tcp_100g"),
        ("mooncake", False, "", False, "tcp_100g"),
    ],
)
def test_a_link_starts_from_a_class(
    transport: str, same_host: bool, gpu: str, rdma: bool, expected: str
) -> None:
    found = default_path_class(load_links(), load_rules(), transport, same_host, gpu, rdma)
    assert found.name == expected


def test_a_file_of_ones_own_overrides_key_by_key_and_adds(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        '[[path]]\nname = "tcp_100g"\nbeta_gb_s = 9\n'
        '[[path]]\nname = "lan"\nkind = "tcp"\nbeta_gb_s = 1\nalpha_us = 10\ngamma_us = 2\n'
        '[[rule]]\nsame_host = false\npath = "lan"\n'
        '[[model]]\nlabel = "Tiny"\nattention = "MHA"\nlayers = 2\nkv_heads = 4\nhead_dim = 16\n'
        '[[speed]]\nmodel = "Tiny"\nhardware = "cpu"\ntp = 1\nprefill_base_ms = 1\n'
        "prefill_us_per_token = 10\nprefill_ns_per_token2 = 0\ndecode_base_ms = 2\n"
        "decode_us_per_sequence = 3\ndecode_ns_per_context_token = 4\n"
    )
    links = load_links(file)
    assert links["tcp_100g"].beta_bytes_per_s == 9e9
    assert links["tcp_100g"].alpha_s == load_links()["tcp_100g"].alpha_s
    assert default_path_class(links, load_rules(file), "nixl", False).name == "lan"
    assert find_shape("tiny", file).layers == 2
    assert find_speed("Tiny", extra=file).speed.decode_s_per_context_token == pytest.approx(4e-9)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a = [\n1,\n!", "line 3"),
        ("[path]\nname = 'x'", r"\[\[path\]\]"),
        ("[[path]]\nname = 'x'\nbeta = 3", "unknown key 'beta'"),
        ("[[path]]\nname = 'x'", "path 'x': 'kind' is missing|'beta_gb_s' is missing"),
        ("[[path]]\nname = 'tcp_100g'\nbeta_gb_s = 0", "above 0"),
        ("[[path]]\nname = 'tcp_100g'\nalpha_us = -1", "alpha_us = -1"),
        ("[[path]]\nname = 'tcp_100g'\nkind = 'smoke'", "smoke"),
        ("[[path]]\nkind = 'tcp'", "'name' is missing"),
    ],
)
def test_a_broken_file_gets_one_clear_error(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "broken.toml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        load_links(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_speeds_are_found_by_gpu_and_tp() -> None:
    assert find_speed("Qwen3-32B").hardware == "h200"
    assert find_speed("qwen/qwen3-32b", "NVIDIA H100 80GB", 4).tp == 4
    with pytest.raises(UnknownSpeedError, match="h200 TP2"):
        find_speed("Qwen3-32B", "V100")
    with pytest.raises(UnknownSpeedError, match="speed"):
        find_speed("Qwen3-8B")


@needs_shared
def test_the_speeds_can_be_fitted_again() -> None:
    root = Path(__file__).resolve().parents[2]
    grid = SHARED / "perf" / "aic_grid_sglang.csv.gz"
    script = [sys.executable, str(root / "benchmarks" / "fit_speeds.py"), str(grid)]
    printed = subprocess.run(script, check=True, capture_output=True, text=True).stdout
    again, packaged = tomllib.loads(printed), tomllib.loads((root / "configs" / "speeds.toml").read_text())
    for one, other in zip(again["speed"], packaged["speed"], strict=True):
        for key, value in other.items():
            assert one[key] == (value if isinstance(value, str) else pytest.approx(value, rel=0.01))


@pytest.mark.parametrize("line", ["port = 3", "[[paths]]", "[policy]"])
def test_what_nobody_would_read_in_a_file_of_ones_own_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "own.toml").write_text(line)
    with pytest.raises(ConfigError, match="unknown"):
        load_links(tmp_path / "own.toml")

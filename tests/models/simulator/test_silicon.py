import importlib.util
import sys

import pytest

from kvferry.models.simulator.cluster_file import parse_cluster
from kvferry.models.simulator.silicon import MissingSiliconError, any_steps, silicon_steps
from kvferry.models.simulator.step_catalogue import UnknownStepsError, find_steps
from kvferry.models.simulator.steps import StepTimes
from kvferry.models.simulator.world import catalogue_steps
from kvferry.models.toml_file import ConfigError

needs_extra = pytest.mark.skipif(
    importlib.util.find_spec("aiconfigurator_core") is None,
    reason="aiconfigurator-core is not installed (extra kvferry[silicon])",
)


def decode_s(steps: StepTimes, batch: int, context: int) -> float:
    return steps.decode_s(batch) + steps.context_s * batch * context


def chunk_s(steps: StepTimes, tokens: int, before: int, batch: int) -> float:
    base = steps.tokens_s(tokens + batch) + steps.attention_s * tokens * (before + tokens / 2)
    return base + (steps.context_s * batch * 2048 + steps.mixed_s if batch else 0.0)


@needs_extra
@pytest.mark.parametrize(
    ("model", "gpu", "tp"),
    [("Qwen3-32B", "h200", 2), ("Llama-3.1-8B", "h100", 1), ("gpt-oss-120b", "h200", 4)],
)
def test_the_tables_agree_with_the_shipped_coefficients(model: str, gpu: str, tp: int) -> None:
    """Within 3% for decode steps and 10% for steps with prefill, at points that neither was fitted to."""
    tables, shipped = silicon_steps(model, gpu, tp), find_steps(model, gpu, tp)
    for batch in (1, 12, 50, 200):
        for context in (700, 5000):
            wanted = decode_s(shipped, batch, context)
            assert decode_s(tables, batch, context) == pytest.approx(wanted, rel=0.03)
    for tokens in (300, 1100, 2000, 7000):
        for before, batch in ((0, 0), (6000, 0), (2048, 40)):
            wanted = chunk_s(shipped, tokens, before, batch)
            assert chunk_s(tables, tokens, before, batch) == pytest.approx(wanted, rel=0.10)


@needs_extra
def test_fp8_weights_are_asked_for_by_name() -> None:
    assert silicon_steps("Llama-3.1-8B-FP8", "h200", 1).decode_s(1) < 0.8 * silicon_steps(
        "Llama-3.1-8B", "h200", 1
    ).decode_s(1)


@needs_extra
@pytest.mark.parametrize(
    ("model", "gpu", "why"), [("nobody/nothing", "h200", "its models"), ("Qwen3-32B", "h300", "its GPUs")]
)
def test_what_the_tables_lack_is_said(model: str, gpu: str, why: str) -> None:
    with pytest.raises(
        UnknownStepsError, match=f"no kernel tables for {model} on {gpu} TP2: not one of {why}"
    ):
        silicon_steps(model, gpu, 2)


def test_without_the_extra_one_line_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", None)
    monkeypatch.setitem(sys.modules, "aiconfigurator_core.sdk.engine", None)
    with pytest.raises(MissingSiliconError, match=r"pip install 'kvferry\[silicon\]'$"):
        silicon_steps("Qwen3-32B", "b200", 2)


def test_shipped_coefficients_come_first_and_need_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiconfigurator_core.sdk.engine", None)
    assert any_steps("Qwen3-32B", "h200", 2) is find_steps("Qwen3-32B", "h200", 2)
    with pytest.raises(UnknownStepsError, match=r"known are Qwen3-32B on h200 TP2.*kvferry\[silicon\]"):
        any_steps("Qwen3-32B", "b200", 8)


@needs_extra
def test_the_tables_serve_what_is_not_shipped() -> None:
    assert any_steps("Qwen3-32B", "b200", 8).decode_s(1) < any_steps("Qwen3-32B", "b200", 2).decode_s(1)
    with pytest.raises(UnknownStepsError, match=r"known are Qwen3-32B on h200 TP2.*; no kernel tables for"):
        any_steps("Qwen3-32B", "h300", 2)


@needs_extra
def test_a_cluster_of_what_is_not_shipped_must_say_its_kv_room() -> None:
    worker = {"role": "colocated", "model": "Qwen3-32B", "gpu": "b200", "tp": 8, "mixed_chunk": False}
    with pytest.raises(
        ConfigError, match="Qwen3-32B on b200 TP8 has room for is not known: give max_total_tokens"
    ):
        parse_cluster({"worker": [worker]}, "x.toml", "x")
    cluster = parse_cluster({"worker": [{**worker, "max_total_tokens": 123_456}]}, "x.toml", "x").spec
    assert (cluster.engines[0].max_total_tokens, cluster.engines[0].mixed_chunk) == (123_456, False)
    assert catalogue_steps(cluster.engines[0]) is silicon_steps("Qwen3-32B", "b200", 8)

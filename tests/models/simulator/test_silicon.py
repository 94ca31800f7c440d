import importlib.util
import sys

import pytest

from kvferry.models.simulator.silicon import MissingSiliconError, silicon_steps
from kvferry.models.simulator.step_catalogue import UnknownStepsError, find_steps
from kvferry.models.simulator.steps import StepTimes

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

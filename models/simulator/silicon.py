"""Step times of any model and GPU that aiconfigurator-core has kernel tables of (extra kvferry[silicon])."""

import contextlib
import logging
from functools import lru_cache
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

from kvferry.models.model_catalogue import UnknownModelError, find_model
from kvferry.models.simulator.step_catalogue import UnknownStepsError, find_steps
from kvferry.models.simulator.step_fit import DECODE_KNOTS, TOKEN_KNOTS, StepSample, fit_steps
from kvferry.models.simulator.steps import StepTimes

VERSION = "0.12.0"
_CONTEXTS = (512, 2048, 8192, 32768)
_PREFIXES = (4096, 16384)
_MIXED = tuple((b, n, context) for b in (8, 64, 256) for n in (1024, 2048, 4096) for context in (2048, 8192))
_MAX_CONTEXT_TOKENS = 1 << 22  # beyond what any GPU holds, the tables are extrapolated


class MissingSiliconError(RuntimeError):
    """The extra is not installed."""


def any_steps(model: str, gpu: str, tp: int) -> StepTimes:
    """The shipped coefficients or, where they lack it, the kernel tables. UnknownStepsError says what both
    know, and names the extra where it is missing."""
    try:
        return find_steps(model, gpu, tp)
    except UnknownStepsError as error:
        try:
            return silicon_steps(model, gpu, tp)
        except MissingSiliconError:
            hint = "many more are known with pip install 'kvferry[silicon]'"
            raise UnknownStepsError(f"{error}; {hint}") from None
        except UnknownStepsError as other:
            raise UnknownStepsError(f"{error}; {other}") from None


@lru_cache
def silicon_steps(model: str, gpu: str, tp: int) -> StepTimes:
    """Step times fitted to what the kernel tables predict for SGLang, as configs/engines.toml is.

    `model`: a Hugging Face id or a name of the model catalogue; with FP8 weights where it ends in -FP8.
    `gpu`: such as "h200" or a system's own name ("gb200", "a100_pcie"). MissingSiliconError without the
    extra; UnknownStepsError when the tables have no such model, GPU or TP.
    """
    return fit_steps(silicon_samples(model, gpu, tp)).bake()


def silicon_samples(model: str, gpu: str, tp: int) -> list[StepSample]:
    """Predicted engine steps; errors as `silicon_steps`. Experts are split as attention is (SGLang's
    default) where there are tables for that, else spread over the GPUs."""
    try:
        sdk = import_module("aiconfigurator_core.sdk.engine")
    except ImportError:
        raise MissingSiliconError(
            "aiconfigurator-core is not installed: pip install 'kvferry[silicon]'"
        ) from None
    logger = logging.getLogger("aiconfigurator_core")
    if not logger.level:
        logger.setLevel(logging.CRITICAL)  # it warns of tables that are not asked for
    root = Path(str(sdk.__file__)).parents[1]
    # An id whose config it does not hold would be looked for on the Internet.
    names = [n for n in _names(model) if (root / "model_configs" / _file(n[0])).is_file()]
    systems = [s for s in (f"{gpu.lower()}_sxm", gpu.lower()) if (root / "systems" / f"{s}.yaml").is_file()]
    said = "not one of its models" if not names else "not one of its GPUs"
    experts: tuple[dict[str, int], ...] = (
        {},
        {"moe_tp_size": tp, "moe_ep_size": 1},
        {"moe_tp_size": 1, "moe_ep_size": tp},
    )
    for (name, formats), system, split in product(names, systems, experts):
        try:
            engine = sdk.EngineHandle.compile(name, system, "sglang", tp_size=tp, **formats, **split)
            return _sampled(engine)
        except Exception as error:  # noqa: BLE001 - of a dozen kinds; the last is told below
            said = (str(error).strip() or type(error).__name__).splitlines()[0]
    raise UnknownStepsError(f"no kernel tables for {model} on {gpu} TP{tp}: {said}")


def _sampled(engine: Any) -> list[StepSample]:
    found = [
        StepSample(b, float(b * c), 0, 0.0, engine.decode_step_latency(b, c, 2) / 1e3)
        for b in DECODE_KNOTS
        for c in _CONTEXTS
        if b * c <= _MAX_CONTEXT_TOKENS
    ]
    for n in TOKEN_KNOTS:
        for p in (0, *(_PREFIXES if n <= 8192 else ())):
            seconds = engine.predict_prefill_latency(1, n + p, p) / 1e3
            found.append(StepSample(0, 0.0, n, n * (p + n / 2), seconds))
    mixed = [
        # the mean chunk of prompts of `context` tokens
        StepSample(b, float(b * c), n, n * c / 2, engine.mixed_step_latency(n, b, c, 2) / 1e3)
        for b, n, c in _MIXED
    ]
    # MLA: the tables' mixed steps do not feel the context, and cannot be right
    felt = len({sample.seconds for sample in mixed}) > len(mixed) / 2
    return found + (mixed if felt else [])


def _file(name: str) -> str:
    return f"{name.replace('/', '--')}_config.json"


def _names(model: str) -> list[tuple[str, dict[str, str]]]:
    """Ids to try, each with the number formats that the tables need told."""
    ids = [model]
    with contextlib.suppress(UnknownModelError):
        ids += find_model(model).ids
    fp8 = model.lower().endswith("-fp8")
    found = []
    for name in dict.fromkeys(ids):
        formats: dict[str, str] = {}
        if fp8 and not name.lower().endswith("-fp8"):  # else its own config says so
            formats["gemm_quant_mode"] = "fp8"
        if "deepseek" in name.lower():
            formats |= {"kvcache_quant_mode": "bfloat16", "fmha_quant_mode": "bfloat16"}
        found.append((name, formats))
    return found

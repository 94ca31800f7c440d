"""Step times and KV room per model, GPU and tensor parallel degree (configs/engines.toml)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from kvferry.models.simulator.step_fit import Knots, StepFit
from kvferry.models.simulator.steps import StepTimes
from kvferry.models.speed_catalogue import model_label, same_gpu
from kvferry.models.toml_file import ConfigError, entries, known_keys, number, packaged, read_toml, text

_ERRORS = ("decode_error", "prefill_error", "mixed_error")
_TERMS = ("attention_ns", "context_ns", "mixed_ms", "kv_room_tokens")
_KEYS = frozenset(("model", "gpu", "tp", "decode", "tokens", "kv_room", "source", *_TERMS, *_ERRORS))


class UnknownStepsError(ValueError):
    """No measured steps for that model, GPU and TP; the message names those that are there."""


@dataclass(frozen=True, slots=True)
class EngineEntry:
    """Fitted steps; `errors`: median and 90th percentile of the fit's relative error, by kind of step.
    `kv_room` and `source` say where the numbers come from."""

    model: str
    gpu: str
    tp: int
    fit: StepFit
    errors: Mapping[str, tuple[float, float]]
    kv_room_tokens: int
    kv_room: str
    source: str


@lru_cache
def find_steps(model: str, gpu: str, tp: int) -> StepTimes:
    """Baked step times; UnknownStepsError where nothing fits."""
    return find_engine(model, gpu, tp).fit.bake()


def kv_room_tokens(model: str, gpu: str, tp: int) -> int:
    """KV tokens that fit beside the weights; UnknownStepsError where nothing fits."""
    return find_engine(model, gpu, tp).kv_room_tokens


@lru_cache
def find_engine(model: str, gpu: str, tp: int) -> EngineEntry:
    """The entry for `model` (any of its names, FP8 weights apart from others) on `gpu`, whose name may hold
    more words than the entry's ("NVIDIA H200"). UnknownStepsError when nothing fits."""
    label = model_label(model)
    mine = [entry for entry in load_engines() if model_label(entry.model) == label]
    for entry in mine:
        if _is_fp8(entry.model) == _is_fp8(model) and same_gpu(entry.gpu, gpu) and entry.tp == tp:
            return entry
    known = ", ".join(f"{entry.model.rpartition('/')[2]} on {entry.gpu} TP{entry.tp}" for entry in mine)
    raise UnknownStepsError(
        f"no measured steps for {model} on {gpu} TP{tp}: known are "
        + (known or ", ".join(sorted({entry.model for entry in load_engines()})))
    )


@lru_cache
def load_engines() -> tuple[EngineEntry, ...]:
    """All entries of configs/engines.toml; ConfigError on a broken file."""
    file = packaged("engines.toml")
    return tuple(_entry(entry, str(file)) for entry in entries(read_toml(file), "engine", file))


def _is_fp8(model: str) -> bool:
    return "fp8" in model.lower()


def _entry(entry: Mapping[str, Any], file: str) -> EngineEntry:
    model = text(entry, "model", f"{file}: an [[engine]] table")
    where = f"{file}: engine {model!r}"
    known_keys(entry, _KEYS, where)
    return EngineEntry(
        model=model,
        gpu=text(entry, "gpu", where),
        tp=int(number(entry, "tp", where)),
        fit=StepFit(
            decode_s=_knots(entry, "decode", where),
            tokens_s=_knots(entry, "tokens", where),
            attention_s=number(entry, "attention_ns", where) * 1e-9,
            context_s=number(entry, "context_ns", where) * 1e-9,
            mixed_s=number(entry, "mixed_ms", where) * 1e-3,
        ),
        errors={key.removesuffix("_error"): tuple(entry[key]) for key in _ERRORS if key in entry},
        kv_room_tokens=int(number(entry, "kv_room_tokens", where)),
        kv_room=text(entry, "kv_room", where, ""),
        source=text(entry, "source", where, ""),
    )


def _knots(entry: Mapping[str, Any], key: str, where: str) -> Knots:
    try:
        knots = tuple((int(count), float(ms) * 1e-3) for count, ms in entry[key])
    except (KeyError, TypeError, ValueError):
        knots = ()
    counts = [count for count, _ in knots]
    if len(knots) < 2 or counts != sorted(set(counts)) or counts[0] < 0 or min(s for _, s in knots) <= 0:
        raise ConfigError(f"{where}: {key} must be at least two knots [count, ms] with rising counts")
    return knots

"""Prior prefill and decode speeds per model, GPU and tensor parallel degree."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from kvferry.models.model_catalogue import UnknownModelError, find_model
from kvferry.models.toml_file import entries, known_keys, number, packaged, read_toml, text
from kvferry.policy.worker import Speed

_TERMS = {
    "prefill_base_ms": ("prefill_base_s", 1e-3),
    "prefill_us_per_token": ("prefill_s_per_token", 1e-6),
    "prefill_ns_per_token2": ("prefill_s_per_token2", 1e-9),
    "decode_base_ms": ("decode_base_s", 1e-3),
    "decode_us_per_sequence": ("decode_s_per_sequence", 1e-6),
    "decode_ns_per_context_token": ("decode_s_per_context_token", 1e-9),
}
_ERRORS = ("prefill_error_median", "prefill_error_p90", "decode_error_median", "decode_error_p90")
_KEYS = frozenset(("model", "hardware", "tp", "source", *_TERMS, *_ERRORS))


class UnknownSpeedError(ValueError):
    """No prior speed for that model, GPU and TP; the message names those that are there."""


@dataclass(frozen=True, slots=True)
class SpeedPrior:
    """A fitted speed; `errors` are relative errors of the fit by name."""

    model: str
    hardware: str
    tp: int
    speed: Speed
    errors: Mapping[str, float]
    source: str


def load_speeds(extra: Path | None = None) -> tuple[SpeedPrior, ...]:
    """All prior speeds; those of `extra` come first, so that they win. ConfigError on a broken file."""
    found: list[SpeedPrior] = []
    for file in (*([extra] if extra else []), packaged("speeds.toml")):
        found += [_prior(entry, str(file)) for entry in entries(read_toml(file), "speed", file)]
    return tuple(found)


def find_speed(
    model: str, hardware: str | None = None, tp: int | None = None, extra: Path | None = None
) -> SpeedPrior:
    """The first prior for `model` (any of its names) that fits; None fits anything.

    `hardware` is a GPU's name or part of it, such as "H200". UnknownSpeedError when nothing fits.
    """
    label = model_label(model, extra)
    mine = [prior for prior in load_speeds(extra) if model_label(prior.model, extra) == label]
    for prior in mine:
        if same_gpu(prior.hardware, hardware) and tp in (None, prior.tp):
            return prior
    known = ", ".join(f"{prior.hardware} TP{prior.tp}" for prior in mine)
    wanted = f"{model}" + (f" on {hardware}" if hardware else "") + (f" TP{tp}" if tp else "")
    raise UnknownSpeedError(
        f"no prior speed for {wanted}"
        + (f": known are {known}" if known else "; give it in a [[speed]] table of a --config file")
    )


def same_gpu(known: str, wanted: str | None) -> bool:
    """Whether `known`, such as "h200" or "rtx4090", is among the words of `wanted`; None is any GPU."""
    if wanted is None:
        return True
    words = wanted.lower().replace("-", " ").replace("_", " ").split()
    return known.lower() in (*words, *map("".join, pairwise(words)))


def model_label(model: str, extra: Path | None = None) -> str:
    """The catalogue's label of a model in lower case; its own name when it is not there."""
    try:
        return find_model(model, extra).label.lower()
    except UnknownModelError:  # a speed may be given for a model whose shape comes from a config.json
        return model.lower()


def _prior(entry: Mapping[str, Any], file: str) -> SpeedPrior:
    model = text(entry, "model", f"{file}: a [[speed]] table")
    where = f"{file}: speed of {model!r}"
    known_keys(entry, _KEYS, where)
    terms = {name: number(entry, key, where) * unit for key, (name, unit) in _TERMS.items()}
    return SpeedPrior(
        model=model,
        hardware=text(entry, "hardware", where),
        tp=int(number(entry, "tp", where)),
        speed=Speed(**terms),  # type: ignore[arg-type]
        errors={key: number(entry, key, where) for key in _ERRORS if key in entry},
        source=text(entry, "source", where, ""),
    )

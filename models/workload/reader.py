"""Any workload by file or name. What a file is, its first line tells, not its name."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from kvferry.models.toml_file import read_toml
from kvferry.models.workload.azure import read_azure
from kvferry.models.workload.base import Workload
from kvferry.models.workload.csv_rows import split_row
from kvferry.models.workload.decision_log import read_decision_log
from kvferry.models.workload.merge import merge
from kvferry.models.workload.mix_file import Recipe, recipe_of
from kvferry.models.workload.mooncake import BLOCK_TOKENS, read_mooncake
from kvferry.models.workload.named import BUILT_IN
from kvferry.models.workload.scale import at_rate, mix
from kvferry.models.workload.scenario import generate
from kvferry.models.workload.scenario_file import scenario_of
from kvferry.models.workload.servegen import read_servegen
from kvferry.models.workload.trace_file import TraceError, TraceFile

Form = Literal["mooncake", "azure", "servegen", "decisions"]


@dataclass(frozen=True, slots=True)
class Mark:
    """A form by what its first line must hold: keys of a JSON object, or columns of a CSV header."""

    form: Form
    names: frozenset[str]
    is_json: bool


MARKS = (
    Mark("mooncake", frozenset({"timestamp", "input_length", "output_length"}), True),
    Mark("decisions", frozenset({"schema", "chosen"}), True),
    Mark("decisions", frozenset({"schema", "workers", "paths"}), True),  # a cluster table, before them
    Mark("azure", frozenset({"TIMESTAMP", "ContextTokens", "GeneratedTokens"}), False),
    Mark("servegen", frozenset({"client", "t_start_s", "rate_rps"}), False),
    Mark("servegen", frozenset({"client", "t_start_s", "field"}), False),
)


def read(
    source: Path | str,
    *,
    seed: int = 0,
    start_s: float = 0.0,
    duration_s: float | None = None,
    rate_rps: float | None = None,
    spread_steps: bool = True,
    block_tokens: int = BLOCK_TOKENS,
    dropped: list[str] | None = None,
) -> Workload:
    """The workload in a file (a trace, a decision log, a scenario or a mix as TOML) or of a built-in name.

    `start_s`, `duration_s`: the part of a trace; with `rate_rps`, requests from the start on at that
    mean rate for that long (`at_rate`: all gaps by one factor). ServeGen and scenarios are sampled at
    the rate instead, and take their own duration when none is given. `seed`: of all sampling, and of
    spreading stamps inside their steps (Mooncake: `spread_steps`, blocks of `block_tokens`).
    `dropped`: a list that takes one message for each malformed line, which is then left out.
    ValueError (TraceError, ConfigError) names file, line, field and value.
    """
    if not 0 <= start_s < float("inf") or (duration_s is not None and not 0 < duration_s < float("inf")):
        raise ValueError(f"no part of a workload: from {start_s} s, {duration_s} s long")
    if rate_rps is not None and not 0 < rate_rps < float("inf"):
        raise ValueError(f"a rate cannot be {rate_rps} requests/s")
    if block_tokens < 1:
        raise ValueError(f"blocks of {block_tokens} tokens")
    path = Path(source)
    named = BUILT_IN.get(source) if isinstance(source, str) else None
    if named is None and path.suffix == ".toml":
        tables = read_toml(path)
        if "part" in tables:
            recipe = recipe_of(tables, path)
            recipe = replace(
                recipe,
                rate_rps=recipe.rate_rps if rate_rps is None else rate_rps,
                duration_s=recipe.duration_s if duration_s is None else duration_s,
            )
            read_part = partial(
                read, start_s=start_s, spread_steps=spread_steps, block_tokens=block_tokens, dropped=dropped
            )
            return _mixed(recipe, read_part, seed)
        named = scenario_of(tables, str(path), path.stem)
    if named:
        if start_s:
            raise ValueError(f"{source} is generated: it has no part that starts at {start_s:g} s")
        return generate(named, seed=seed, duration_s=duration_s, rate_rps=rate_rps)
    if not path.exists() and len(path.parts) == 1 and not path.suffix:
        raise TraceError(f"no file and no built-in workload {str(source)!r} (known: {', '.join(BUILT_IN)})")
    trace = TraceFile(path, dropped)
    form = form_of(trace)
    if form == "servegen":
        return read_servegen(trace, seed=seed, start_s=start_s, duration_s=duration_s, rate_rps=rate_rps)
    if form == "mooncake":
        whole = read_mooncake(trace, seed=seed, spread_steps=spread_steps, block_tokens=block_tokens)
    else:
        whole = read_azure(trace) if form == "azure" else read_decision_log(trace)
    part = whole.between(start_s, float("inf")) if start_s else whole
    if rate_rps is None and duration_s is not None:
        part = part.between(0.0, duration_s)
    if not len(part):
        raise TraceError(f"{path} has no request in the part from {start_s:g} s on")
    return part if rate_rps is None else at_rate(part, rate_rps, duration_s)


def _mixed(recipe: Recipe, read_part: Callable[..., Workload], seed: int) -> Workload:
    """Parts at their shares of the rate, each of a seed of its own."""
    seeded = [(part, seed + place) for place, part in enumerate(recipe.parts)]
    if recipe.duration_s is None:
        whole = [(read_part(part.source, seed=own), part.weight) for part, own in seeded]
        return mix(whole, recipe.rate_rps, name=recipe.name)
    return merge(
        recipe.name,
        [
            read_part(
                part.source,
                seed=own,
                duration_s=recipe.duration_s,
                rate_rps=recipe.rate_rps * recipe.share(part),
            )
            for part, own in seeded
        ],
    )


def form_of(trace: TraceFile) -> Form:
    """By the first line. Raises TraceError when the file is empty or of no known form."""
    line = next((line for _, line in trace.lines()), None)
    if line is None:
        raise TraceError(f"{trace.path} is empty")
    is_json = line.startswith(b"{")
    names = set(_keys(line) if is_json else split_row(line))
    for mark in MARKS:
        if mark.is_json == is_json and mark.names <= names:
            return mark.form
    shown = line[:60].decode("utf-8", errors="replace")
    raise TraceError(
        f"{trace.path} begins with {shown!r}: not Mooncake JSONL, an Azure CSV, ServeGen's rates or lengths, "
        "nor a kvferry decision log"
    )


def _keys(line: bytes) -> list[str]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return []
    return list(found) if isinstance(found, dict) else []

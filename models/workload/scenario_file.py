"""Scenarios from TOML, see docs/workloads.md for the form."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from kvferry.models.toml_file import ConfigError, entries, known_keys, number, text
from kvferry.models.workload.arrivals import Arrivals, Family
from kvferry.models.workload.lengths import Fixed, Lengths, Lognormal, Mixture, Quantiles, Uniform
from kvferry.models.workload.scenario import Phase, Scenario, Stream
from kvferry.models.workload.session import Session

Table = Mapping[str, Any]
T = TypeVar("T")

SCENARIO = frozenset({"name", "duration_s", "block_tokens", "stream", "phase"})
LENGTHS = {"opening_tokens": None, "output_tokens": None, "turns": 1, "follow_tokens": 0, "wait_s": 0}
PLAIN = ("s_per_token", "system_tokens", "system_prompts", "limit_tokens")
ARRIVALS = ("arrivals", "cv", "on_s", "off_s")
STREAM = frozenset({"name", "rate_rps", *LENGTHS, *PLAIN, *ARRIVALS})
LOGNORMAL = frozenset({"median", "sigma", "low", "high"})


def scenario_of(tables: Table, where: str, name: str) -> Scenario:
    """From parsed TOML. Raises ConfigError naming `where`, table and key."""
    known_keys(tables, SCENARIO, where)
    streams = tuple(
        _stream(entry, f"{where}: stream {entry.get('name', place)!r}", place)
        for place, entry in enumerate(entries(tables, "stream", where), start=1)
    )
    names = [stream.name for stream in streams]
    for place, stream_name in enumerate(names):
        if stream_name in names[:place]:
            raise ConfigError(f"{where}: two streams are named {stream_name!r}")
    phases = tuple(
        _phase(entry, names, f"{where}: phase {place}")
        for place, entry in enumerate(entries(tables, "phase", where), start=1)
    )
    return _made(
        where,
        lambda: Scenario(
            name=text(tables, "name", where, name),
            streams=streams,
            phases=phases,
            duration_s=number(tables, "duration_s", where, 600.0),
            block_tokens=_whole(tables, "block_tokens", where, 512),
        ),
    )


def _stream(entry: Table, where: str, place: int) -> Stream:
    known_keys(entry, STREAM, where)
    lengths = {key: _lengths(entry.get(key, default), f"{where}: {key}") for key, default in LENGTHS.items()}
    family: Family = text(entry, "arrivals", where, "poisson")  # type: ignore[assignment]
    return _made(
        where,
        lambda: Stream(
            name=text(entry, "name", where, f"stream{place}"),
            rate_rps=number(entry, "rate_rps", where),
            session=Session(
                opening=lengths["opening_tokens"],
                output=lengths["output_tokens"],
                turns=lengths["turns"],
                follow=lengths["follow_tokens"],
                wait_s=lengths["wait_s"],
                s_per_token=number(entry, "s_per_token", where, 0.02),
                system_tokens=_whole(entry, "system_tokens", where, 0),
                system_prompts=_whole(entry, "system_prompts", where, 1),
                limit_tokens=_whole(entry, "limit_tokens", where, 131_072),
            ),
            arrivals=Arrivals(
                family,
                cv=number(entry, "cv", where, 1.0),
                on_s=number(entry, "on_s", where, 0.0),
                off_s=number(entry, "off_s", where, 0.0),
            ),
        ),
    )


def _phase(entry: Table, names: list[str], where: str) -> Phase:
    """`share` and, by a stream's name, its factor (1 where none is given)."""
    known_keys(entry, frozenset({"share", *names}), where)
    factors = tuple(number(entry, name, where, 1.0) for name in names)
    return Phase(number(entry, "share", where, 1.0), factors)


def _lengths(value: Any, where: str) -> Lengths:
    """A number, or a table: uniform, median and sigma, levels and values, or mix."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _made(where, lambda: Fixed(value))
    if value is None:
        raise ConfigError(f"{where} is missing")
    if not isinstance(value, dict):
        raise ConfigError(f"{where} = {value!r} is neither a number nor a table")
    if "uniform" in value:
        known_keys(value, frozenset({"uniform"}), where)
        ends = _numbers(value, "uniform", where)
        if len(ends) != 2:
            raise ConfigError(f"{where}: uniform = [lowest, highest]")
        return _made(where, lambda: Uniform(*ends))
    if "levels" in value or "values" in value:
        known_keys(value, frozenset({"levels", "values"}), where)
        levels, values = _numbers(value, "levels", where), _numbers(value, "values", where)
        return _made(where, lambda: Quantiles(levels, values))
    if "mix" in value:
        known_keys(value, frozenset({"mix"}), where)
        parts = entries(value, "mix", where)
        weights = tuple(number(part, "weight", where, 1.0) for part in parts)
        drawn = tuple(_lengths(_unweighted(part), where) for part in parts)
        return _made(where, lambda: Mixture(drawn, weights))
    known_keys(value, LOGNORMAL, where)
    given = {key: number(value, key, where) for key in ("median", "sigma", *value)}
    return _made(where, lambda: Lognormal(**given))


def _unweighted(part: Table) -> Any:
    """A part of a mix: `value = 5`, or any table of lengths, beside its weight."""
    rest = {key: value for key, value in part.items() if key != "weight"}
    return rest["value"] if set(rest) == {"value"} else rest


def _numbers(entry: Table, key: str, where: str) -> tuple[float, ...]:
    values = entry.get(key)
    if not isinstance(values, list):
        raise ConfigError(f"{where}: {key!r} must be a list of numbers")
    return tuple(number({key: value}, key, where) for value in values)


def _whole(entry: Table, key: str, where: str, default: int) -> int:
    value = number(entry, key, where, default)
    if value != int(value):
        raise ConfigError(f"{where}: {key} = {value!r} is no whole number")
    return int(value)


def _made(where: str, build: Callable[[], T]) -> T:
    """What `build` returns; its ValueError with the place before it."""
    try:
        return build()
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None

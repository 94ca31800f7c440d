"""Mixes from TOML: which workloads come at once, and in what proportion."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvferry.models.toml_file import ConfigError, entries, known_keys, number, read_toml, text
from kvferry.models.workload.named import BUILT_IN


@dataclass(frozen=True, slots=True)
class Part:
    """`source`: a file, or the name of a built-in workload."""

    source: Path | str
    weight: float


@dataclass(frozen=True, slots=True)
class Recipe:
    """Requests of the parts in proportion to their weights, `rate_rps` in all."""

    name: str
    parts: tuple[Part, ...]
    rate_rps: float
    duration_s: float | None

    def share(self, part: Part) -> float:
        return part.weight / sum(other.weight for other in self.parts)


def recipe_of(tables: Mapping[str, Any], file: Path) -> Recipe:
    """From parsed TOML; files are named from the folder of `file`. Raises ConfigError."""
    where = str(file)
    known_keys(tables, frozenset({"name", "rate_rps", "duration_s", "part"}), where)
    parts = []
    for place, entry in enumerate(entries(tables, "part", where), start=1):
        at = f"{where}: part {place}"
        known_keys(entry, frozenset({"source", "weight"}), at)
        source, weight = text(entry, "source", at), number(entry, "weight", at, 1.0)
        if weight <= 0:
            raise ConfigError(f"{at}: weight must be above 0")
        inner = file.parent / source
        if source not in BUILT_IN and inner.suffix == ".toml" and "part" in read_toml(inner):
            raise ConfigError(f"{at}: {source} is a mix itself: name its parts here")
        parts.append(Part(source if source in BUILT_IN else inner, weight))
    rate_rps = number(tables, "rate_rps", where)
    duration_s = number(tables, "duration_s", where) if "duration_s" in tables else None
    if not parts or rate_rps <= 0 or duration_s == 0:
        raise ConfigError(f"{where}: a mix needs parts, and a rate_rps and duration_s above 0")
    return Recipe(text(tables, "name", where, file.stem), tuple(parts), rate_rps, duration_s)

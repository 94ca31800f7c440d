"""KV shapes by name: a Hugging Face id, its short name, or the path of a config.json."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kvferry.models.hf_config import load_config, shape_from_config
from kvferry.models.toml_file import ConfigError, entries, known_keys, number, packaged, read_toml, text
from kvferry.policy.kvshape import KVShape

_WINDOW = ("window_tokens", "window_layers", "window_kv_heads", "window_head_dim")
_NUMBERS = ("layers", "kv_heads", "head_dim", *_WINDOW, "fixed_bytes", "model_layers")
_KEYS = frozenset(("label", "ids", "aliases", "attention", "mla", "source", "note", *_NUMBERS))
# Suffixes that leave the KV shape as it is: tuning and weight formats.
_SUFFIX = re.compile(r"-(instruct|base|chat|it|pt|hf|bf16|fp8|awq|gptq(-int[48])?)$")


class UnknownModelError(ValueError):
    """No shape under that name; the message names the nearest ones and what to do."""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model of the catalogue: `ids` are Hugging Face ids, `source` says where the numbers were read."""

    label: str
    ids: tuple[str, ...]
    aliases: tuple[str, ...]
    shape: KVShape
    source: str
    note: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        short = tuple(name.rpartition("/")[2] for name in self.ids)
        return tuple(dict.fromkeys((self.label, *self.ids, *self.aliases, *short)))


def load_models(extra: Path | None = None) -> tuple[ModelEntry, ...]:
    """The catalogue; entries of `extra` come first, so that they win. ConfigError on a broken file."""
    found: list[ModelEntry] = []
    for file in (*([extra] if extra else []), packaged("models.toml")):
        found += [_entry(entry, str(file)) for entry in entries(read_toml(file), "model", file)]
    return tuple(found)


def find_shape(name_or_path: str, extra: Path | None = None) -> KVShape:
    """The KV shape of a model: known by id or short name, or read from a config.json or its folder.

    Names are matched in any case, with or without a suffix that leaves the KV as it is (-Instruct,
    -FP8, ...). UnknownModelError when nothing fits, ValueError when a config.json cannot be used.
    """
    if not name_or_path.strip():
        return find_model(name_or_path, extra).shape
    path = Path(name_or_path).expanduser()
    if path.is_file() or (path / "config.json").is_file():
        return shape_from_config(load_config(path), name=name_or_path)
    if path.is_dir() or name_or_path.endswith(".json") or name_or_path.startswith((".", "/", "~")):
        raise UnknownModelError(f"no config.json at {name_or_path!r}")
    return find_model(name_or_path, extra).shape


def find_model(name: str, extra: Path | None = None) -> ModelEntry:
    """The catalogue's entry for a name; UnknownModelError naming the nearest ones."""
    index = _index(extra)
    wanted = name.strip().lower()
    while True:
        if found := index.get(wanted):
            return found
        shorter = _SUFFIX.sub("", wanted)
        if shorter == wanted:
            break
        wanted = shorter
    short = {key: entry for key, entry in index.items() if "/" not in key}
    keys = difflib.get_close_matches(wanted.rpartition("/")[2], short, n=6, cutoff=0.0)
    nearest = list(dict.fromkeys(short[key].label for key in keys))[:3]
    raise UnknownModelError(
        f"unknown model {name!r}: nearest known are {', '.join(nearest)}; "
        "for any other model give the path of its config.json"
    )


@cache
def _index(extra: Path | None) -> Mapping[str, ModelEntry]:
    index: dict[str, ModelEntry] = {}
    for entry in load_models(extra):
        for name in entry.names:
            index.setdefault(name.lower(), entry)
            index.setdefault(_SUFFIX.sub("", name.lower()), entry)
    return index


def _entry(entry: Mapping[str, Any], file: str) -> ModelEntry:
    label = text(entry, "label", f"{file}: a [[model]] table")
    where = f"{file}: model {label!r}"
    known_keys(entry, _KEYS, where)
    for key in ("layers", "kv_heads", "head_dim"):
        number(entry, key, where)
    numbers = {key: int(number(entry, key, where)) for key in _NUMBERS if key in entry}
    try:
        shape = KVShape(
            name=label, attention=text(entry, "attention", where), mla=entry.get("mla") is True, **numbers
        )
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    return ModelEntry(
        label=label,
        ids=_strings(entry, "ids", where),
        aliases=_strings(entry, "aliases", where),
        shape=shape,
        source=text(entry, "source", where, ""),
        note=text(entry, "note", where, ""),
    )


def _strings(entry: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = entry.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ConfigError(f"{where}: {key} must be a list of strings")
    return tuple(value)

"""TOML read with one clear error: the file, the line, and what is wrong there."""

import tomllib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

TABLES = ("path", "rule", "model", "speed")


class ConfigError(ValueError):
    """A configuration file cannot be used; the message names the file and the place."""


class UnknownNameError(ConfigError):
    """A name that is neither built in nor that of a file: a mistake in how a command was called."""


def packaged(name: str) -> Path:
    """A file of `kvferry.configs`, from a wheel as from an editable install.

    Not `importlib.resources.files`: it refuses an editable namespace package, whose path also holds
    the finder's marker, which is no folder.
    """
    folders = [Path(entry) for entry in import_module("kvferry.configs").__path__]
    found = next((folder / name for folder in folders if (folder / name).is_file()), None)
    if found is None:
        raise ConfigError(f"this installation lacks its file configs/{name}: install kvferry again")
    return found


def read_toml(file: Path) -> Mapping[str, Any]:
    """The tables of a TOML file; ConfigError when it is missing, unreadable or broken."""
    try:
        text = file.read_bytes().decode("utf-8")
        return tomllib.loads(text)
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:  # its message ends in "(at line 3, column 7)"
        raise ConfigError(f"{file}: broken TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror or error}") from None


def check_tables(tables: Mapping[str, Any], file: object) -> None:
    """ConfigError when a file of one's own holds something that nobody would read."""
    odd = [key for key in tables if key not in TABLES]
    if odd:
        raise ConfigError(
            f"{file}: unknown {', '.join(map(repr, odd))}: known are [[{']], [['.join(TABLES)}]]"
        )


def entries(tables: Mapping[str, Any], key: str, file: object) -> list[Mapping[str, Any]]:
    """The `[[key]]` tables of a file, empty when there is none."""
    found = tables.get(key, [])
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise ConfigError(f"{file}: {key!r} must be written as [[{key}]] tables")
    return found


def number(entry: Mapping[str, Any], key: str, where: str, default: float | None = None) -> float:
    """A number >= 0 of an entry, or `default`; ConfigError naming the entry and the key."""
    value = entry.get(key, default)
    if value is None:
        raise ConfigError(f"{where}: {key!r} is missing")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ConfigError(f"{where}: {key} = {value!r} is not a number of at least 0")
    return float(value)


def text(entry: Mapping[str, Any], key: str, where: str, default: str | None = None) -> str:
    """A string of an entry, or `default`; ConfigError naming the entry and the key."""
    value = entry.get(key, default)
    if value is None:
        raise ConfigError(f"{where}: {key!r} is missing")
    if not isinstance(value, str):
        raise ConfigError(f"{where}: {key} = {value!r} is not a string")
    return value


def known_keys(entry: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    """Refuse a misspelt key: a silent default would be worse than an error."""
    if unknown := sorted(set(entry) - known):
        raise ConfigError(f"{where}: unknown key {unknown[0]!r} (known: {', '.join(sorted(known))})")

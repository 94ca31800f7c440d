"""Whether this SGLang is the one the hooks were written for: version, attributes, sources."""

import hashlib
import importlib
import inspect
from collections.abc import Iterable
from typing import Any

import msgspec

from kvferry.models.toml_file import packaged, read_toml

HASH_CHARACTERS = 16


class Pins(msgspec.Struct, frozen=True):
    """`versions`: SGLang releases that were tested; `sources`: dotted path -> hash of its source."""

    versions: tuple[str, ...]
    sources: dict[str, str]

    @classmethod
    def load(cls) -> "Pins":
        return msgspec.convert(read_toml(packaged("sglang_pins.toml")), cls)


def why_not(paths: Iterable[str], pins: Pins | None = None, *, pinned: bool = True) -> str | None:
    """Why hooks on (and calls to) these functions cannot be trusted here; None when they can.

    Not `pinned`: they only have to be there.
    """
    pins = pins or Pins.load()
    try:
        version = str(importlib.import_module("sglang.version").__version__)
    except ImportError as error:
        return f"SGLang cannot be imported: {error}"
    if pinned and version not in pins.versions:
        return f"SGLang {version} was not tested, only {', '.join(pins.versions)}"
    wrong = []
    for path in dict.fromkeys(paths):
        try:
            found = source_hash(path) if pinned else str(resolve(path))
        except Exception as error:  # noqa: BLE001 - whatever an import raises, it is the answer
            wrong.append(f"{path} is not there ({' '.join(str(error).split())})")
            continue
        if not pinned:
            continue
        if path not in pins.sources:
            wrong.append(f"{path} has no pin")
        elif found != pins.sources[path]:
            wrong.append(f"the source of {path} has changed ({found}, tested {pins.sources[path]})")
    return "; ".join(wrong) or None


def not_applied(targets: Iterable[str], relied: Iterable[str]) -> str | None:
    """What is wrong after SGLang applied all plugins' hooks; None when it is as asked for.

    `relied`: functions that must still be SGLang's own. Another plugin's wrappers around them are borne, a
    replacement is not.
    """
    registry = importlib.import_module("sglang.srt.plugins.hook_registry")
    missing = [target for target in targets if target not in registry.HookRegistry._patched]
    if missing:
        return f"SGLang did not apply the hooks on {', '.join(missing)}"
    swapped = [
        path
        for path, hooks in list(registry.HookRegistry._hooks.items())
        if any(kind is registry.HookType.REPLACE for kind, *_ in hooks)
        and any(one == path or one.startswith(path + ".") for one in relied)
    ]
    return f"another plugin replaces {', '.join(swapped)}" if swapped else None


def source_hash(path: str) -> str:
    """Of the function at a dotted path, whatever was wrapped around it by functools.wraps."""
    source = inspect.getsource(inspect.unwrap(resolve(path)))
    return hashlib.sha256(source.encode()).hexdigest()[:HASH_CHARACTERS]


def resolve(path: str) -> Any:
    """The object at a dotted path. Raises ImportError or AttributeError."""
    parts = path.split(".")
    for end in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:end])
        try:
            found: Any = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and not f"{name}.".startswith(f"{error.name}."):
                raise  # the module is there, but not what it imports
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise ImportError(f"no module {parts[0]}")

"""JSON objects, one a line, checked against a msgspec type."""

import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from kvferry.models.workload.trace_file import TraceFile

T = TypeVar("T")
PLACE = re.compile(r"(?P<why>.*) - at `\$\.?(?P<path>.*)`$", re.DOTALL)
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
MISSING = re.compile(r"Object missing required field `(?P<field>.*)`")


def read_objects(trace: TraceFile, kind: type[T], skip: bytes | None = None) -> Iterator[tuple[int, T]]:
    """(line number, object) of every line that is one; the others are refused, or left out in silence where
    they begin with `skip`."""
    decode = msgspec.json.Decoder(kind).decode
    for number, line in trace.lines():
        if skip is not None and line.startswith(skip):
            continue
        try:
            found = decode(line)
        except msgspec.ValidationError as error:
            trace.refuse(number, *_explained(str(error), line))
        except UNREADABLE as error:
            trace.refuse(number, "", None, f"no JSON object: {error}")
        else:
            yield number, found


def _explained(message: str, line: bytes) -> tuple[str, Any, str]:
    """Field, value and what is wrong, from msgspec's "Expected `int`, got `str` - at `$.a[...]`"."""
    place = PLACE.match(message)
    path, why = (place["path"], place["why"]) if place else ("", message)
    if missing := MISSING.match(why):
        return ".".join(filter(None, (path, missing["field"]))), None, "is missing"
    try:
        value: Any = msgspec.json.decode(line)
    except UNREADABLE:  # broken behind the place where its type was wrong
        return "", None, why
    for key, index in STEP.findall(path):
        if isinstance(value, dict) and key:
            value = value.get(key)
        elif isinstance(value, list) and index and int(index) < len(value):
            value = value[int(index)]
    return path or "line", value, why

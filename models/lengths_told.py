"""Lengths of answers as routers tell them each other: JSON, checked number by number when it is read."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from kvferry.models.output_tokens import BINS, MOST_ANSWERS, MOST_TOKENS, Bin

SCHEMA: Literal["kvferry.lengths.v1"] = "kvferry.lengths.v1"
MOST_BYTES = 200_000
MOST_PLACES = 4096
FORGOTTEN = 1e-3

_Name = Annotated[str, msgspec.Meta(max_length=512)]
_Hash = Annotated[str, msgspec.Meta(max_length=64)]
_At = Annotated[int, msgspec.Meta(ge=0, lt=BINS)]
_Answers = Annotated[float, msgspec.Meta(ge=0.0, le=MOST_ANSWERS + 1.0)]
_Tokens = Annotated[float, msgspec.Meta(gt=0.0, le=(MOST_ANSWERS + 1.0) * MOST_TOKENS)]
_Places = tuple[_Name, _Hash, _Hash]
_Bins = Annotated[tuple[tuple[_At, _Answers, _Answers, _Tokens], ...], msgspec.Meta(max_length=BINS)]


class _Read(msgspec.Struct, frozen=True):
    schema: Literal["kvferry.lengths.v1"]
    places: Annotated[tuple[tuple[_Places, _Bins], ...], msgspec.Meta(max_length=MOST_PLACES)]


_read = msgspec.json.Decoder(_Read).decode


@dataclass(frozen=True, slots=True)
class Part:
    """One place (model, tenant, family) and what was seen there; `size`: bytes of its JSON, 0 where read."""

    place: tuple[str, str, str]
    bins: tuple[Bin, ...]
    json: bytes = b""

    @classmethod
    def of(cls, place: tuple[str, str, str], bins: Iterable[Bin]) -> "Part":
        rounded = tuple(
            (at, _short(ended), _short(cut), _short(tokens))
            for at, ended, cut, tokens in bins
            if ended + cut >= FORGOTTEN
        )
        return cls(place, rounded, msgspec.json.encode((place, rounded)))

    @property
    def size(self) -> int:
        return len(self.json) + 1


class LengthsTold:
    """The message: `write` of places, `read` into them (ValueError, in one line, when it is none)."""

    @staticmethod
    def write(parts: Iterable[Part]) -> bytes:
        return msgspec.json.encode({"schema": SCHEMA, "places": [msgspec.Raw(part.json) for part in parts]})

    @staticmethod
    def read(told: bytes) -> list[Part]:
        try:
            message = _read(told)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"no lengths of answers: {error}") from None
        for place, bins in message.places:
            for at, ended, cut, tokens in bins:
                if not ended + cut <= tokens * 1.0001 <= 1.001 * MOST_TOKENS * (ended + cut):
                    raise ValueError(f"no lengths of answers: bin {at} of {place} has {tokens} tokens")
        return [Part(place, bins) for place, bins in message.places]


def _short(value: float) -> float:
    return float(f"{value:.6g}")

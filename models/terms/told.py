"""What routers tell each other of terms: own evidence as JSON, strictly read."""

import math
from collections.abc import Iterable

import msgspec

from kvferry.models.link_speed import Took
from kvferry.models.terms.evidence import Sums
from kvferry.models.terms.members import Key, Member
from kvferry.models.terms.pool import Pool
from kvferry.models.terms.way import Path, Wire

SCHEMA = "kvferry.terms.v1"
# A snapshot must stay under 256 KiB.
MOST_BYTES = 256 * 1024
MOST_MEMBERS = 400
MOST_MOVES = 500
MOST_TEXT = 256


class ToldMember(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    key: tuple[str, ...]
    values: tuple[float, ...]
    time_s: float
    changed_s: float


class ToldMove(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    src_host: str
    dst_host: str
    transport: str
    relation: str
    bytes_s: float
    posting_s: float
    took_s: float
    noise_s: float
    time_s: float
    base: str = ""


class Told(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`pools` by the name of the term; times in Unix seconds, `told_s`: when it was told."""

    schema: str
    told_s: float
    pools: dict[str, tuple[ToldMember, ...]]
    moves: tuple[ToldMove, ...] = ()


def encode(pools: dict[str, Pool], moves: Iterable[Took], now_s: float) -> bytes:
    """Own evidence only; of too much, what is newest."""
    members = {
        name: sorted(pool.members.own.items(), key=lambda item: -item[1].sums.time_s)
        for name, pool in pools.items()
    }
    latest = sorted(moves, key=lambda move: -move.time_s)
    most = 1.0
    while True:
        told = Told(
            SCHEMA,
            now_s,
            {
                name: tuple(_member(*one) for one in found[: int(most * MOST_MEMBERS)])
                for name, found in members.items()
            },
            tuple(_move(move) for move in latest[: int(most * MOST_MOVES)]),
        )
        encoded = msgspec.json.encode(told)
        if len(encoded) < MOST_BYTES:
            return encoded
        most *= 0.7


def decode(
    told: bytes, sizes: dict[str, int], now_s: float
) -> tuple[dict[str, dict[Key, Member]], list[Took]]:
    """Evidence by the term's name, and moves. ValueError where `told` is not what `encode` makes.

    `sizes`: inputs of each term; terms that are not in it are passed over. A clock that is ahead of `now_s`
    is put right: what was told last would outweigh all else; what still lies ahead then, of a clock that was
    set back, is of now. One that is behind makes evidence look older.
    """
    if len(told) > MOST_BYTES:
        raise ValueError(f"{len(told)} bytes of evidence: {MOST_BYTES} at most")
    found = msgspec.json.decode(told, type=Told)  # its errors are ValueErrors
    if found.schema != SCHEMA:
        raise ValueError(f"evidence in {found.schema[:40]!r}, not in {SCHEMA}")
    ahead_s = max(0.0, found.told_s - now_s)
    pools = {
        name: {one.key: _evidence(one, size, ahead_s, now_s) for one in found.pools.get(name, ())}
        for name, size in sizes.items()
    }
    moves = [
        Took(
            Path(one.src_host, one.dst_host, one.transport),
            Wire(one.bytes_s, one.posting_s, one.relation, one.base[:MOST_TEXT]),
            *(one.took_s, one.noise_s, min(one.time_s - ahead_s, now_s)),
        )
        for one in found.moves
    ]
    if not all(move.sound for move in moves):
        raise ValueError("a move makes no sense")
    return pools, moves


def _evidence(one: ToldMember, size: int, ahead_s: float, now_s: float) -> Member:
    if not one.key or any(len(part) > MOST_TEXT for part in one.key):
        raise ValueError("a name is empty or too long")
    if not math.isfinite(one.changed_s):
        raise ValueError("a time is not finite")
    changed_s = min(one.changed_s - ahead_s, now_s) if one.changed_s else 0.0
    return Member(Sums.checked(size, one.values, min(one.time_s - ahead_s, now_s)), changed_s)


def _member(key: Key, member: Member) -> ToldMember:
    values = tuple(float(f"{value:.9g}") for value in member.sums.values)
    key = tuple(part[:MOST_TEXT] for part in key)
    return ToldMember(key, values, round(member.sums.time_s, 6), round(member.changed_s, 6))


def _move(took: Took) -> ToldMove:
    wire = took.wire
    return ToldMove(*took.path, wire.relation, wire.bytes_s, wire.posting_s, *took[2:], wire.base)

"""`kvferry.cluster.v1`: the plans that a set of workers allows, once for the many decisions among them."""

import hashlib
from dataclasses import replace
from typing import Literal

import msgspec

from kvferry.policy.candidates import Candidates
from kvferry.policy.cluster import State
from kvferry.policy.decision import Reason
from kvferry.policy.link import Link
from kvferry.policy.plan import Split
from kvferry.policy.worker import Load, Speed, Worker

SCHEMA: Literal["kvferry.cluster.v1"] = "kvferry.cluster.v1"


class ClusterTable(msgspec.Struct, frozen=True):
    """`id` is a hash of the rest. `workers` have neither load nor speed, which are in each picture, nor
    facts, which decide nothing. `paths`: plan key -> place in `links`. `down`: plan keys a breaker held open,
    with its reason. `columns`: the fields of `State` and their lengths, in the order of the numbers."""

    schema: Literal["kvferry.cluster.v1"] = SCHEMA
    id: str = ""
    workers: tuple[Worker, ...] = ()
    links: tuple[Link, ...] = ()
    paths: dict[str, int] = msgspec.field(default_factory=dict)
    down: dict[str, str] = msgspec.field(default_factory=dict)
    columns: dict[str, int] = msgspec.field(default_factory=dict)

    @classmethod
    def of(cls, table: Candidates, columns: dict[str, int]) -> "ClusterTable":
        places: dict[Link, int] = {}
        paths = {
            key: places.setdefault(link, len(places))
            for key, link in zip(table.keys, table.plan_links, strict=True)
            if link is not None
        }
        down = {key: why for key, (code, why) in table.impossible.items() if code is Reason.PATH_DOWN}
        workers = tuple(replace(worker, load=Load(), speed=Speed(), facts={}) for worker in table.workers)
        found = cls(workers=workers, links=tuple(places), paths=paths, down=down, columns=columns)
        return msgspec.structs.replace(found, id=hashlib.sha256(write_table(found)).hexdigest()[:16])

    def candidates(self, met: frozenset[str] = frozenset()) -> Candidates:
        """The same plans again, `met` being those that had moved KV before. KeyError when this version of
        kvferry finds plans possible that were not."""

        def link_of(src: Worker, dst: Worker, transport: str) -> Link:
            return self.links[self.paths[Split(src.id, dst.id, transport).key]]

        return Candidates.build(self.workers, link_of, self.down, met)


def columns_of(state: State) -> dict[str, int]:
    """The fields of a State and their lengths."""
    return {name: len(getattr(state, name)) for name in State.__slots__}


_encoder = msgspec.json.Encoder()
_tables = msgspec.json.Decoder(ClusterTable)


class _Head(msgspec.Struct):
    schema: Literal["kvferry.cluster.v1"]
    id: str


_heads = msgspec.json.Decoder(_Head)


def write_table(table: ClusterTable) -> bytes:
    """One line of JSON, without its newline."""
    return _encoder.encode(table)


def read_table(line: bytes) -> ClusterTable:
    """Raises msgspec.DecodeError."""
    return _tables.decode(line)


def table_id(line: bytes | str) -> str | None:
    """The id of the table in a line; None when it holds none."""
    try:
        return _heads.decode(line).id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None

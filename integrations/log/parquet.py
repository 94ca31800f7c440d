"""The log as Parquet: one column per field of the record, nested as the record is. Needs pyarrow.

Cluster tables are in the file's key-value metadata, each under `kvferry.cluster.v1:ID`.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kvferry.integrations.log.cluster_table import SCHEMA
from kvferry.integrations.log.record import DecisionRecord
from kvferry.integrations.log.source import SourceError

if TYPE_CHECKING:
    from kvferry.integrations.log.reader import ReadReport

ROWS = 1000


def write_parquet(
    records: Iterable[DecisionRecord], path: Path, clusters: Mapping[str, bytes] | None = None
) -> int:
    """Write `records` to `path`, with the `clusters` they refer to; returns how many. Raises SourceError
    without pyarrow, OSError."""
    pa, pq = _pyarrow()
    schema = pa.schema(_fields(pa, DecisionRecord))
    count = 0
    used: set[str] = set()
    remaining = iter(records)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        while part := list(islice(remaining, ROWS)):
            used.update(record.picture.cluster for record in part if record.picture is not None)
            rows = [msgspec.to_builtins(record, builtin_types=(bytes,)) for record in part]
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
            count += len(rows)
        tables = {f"{SCHEMA}:{name}": line for name, line in (clusters or {}).items() if name in used}
        writer.add_key_value_metadata(tables)
    return count


def read_parquet(path: Path, report: "ReadReport") -> Iterator[DecisionRecord]:
    """The records of a Parquet file; rows that are none are counted in `report`."""
    pa, pq = _pyarrow()
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            report.clusters |= _tables(file.metadata.metadata or {})
            for batch in file.iter_batches(batch_size=ROWS):
                for row in batch.to_pylist(maps_as_pydicts="lossy"):
                    number += 1
                    try:
                        record = msgspec.convert(row, DecisionRecord, builtin_types=(bytes,))
                    except msgspec.ValidationError as error:
                        report.reject(f"{path}: row {number}", str(error))
                        continue
                    report.read += 1
                    yield record
    except (pa.ArrowException, OSError) as error:
        report.reject(f"{path}: row {number + 1}", f"the file ends here: {' '.join(str(error).split())}")


def _tables(metadata: Mapping[bytes, bytes]) -> dict[str, bytes]:
    ours = f"{SCHEMA}:".encode()
    return {key.removeprefix(ours).decode(): line for key, line in metadata.items() if key.startswith(ours)}


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise SourceError("Parquet needs pyarrow: pip install 'kvferry[logs]'") from None
    return pyarrow, pyarrow.parquet


def _fields(pa: Any, struct: type[msgspec.Struct]) -> list[Any]:
    # a seed uses all 64 bits
    return [
        pa.field(field.name, pa.uint64() if field.name == "seed" else _arrow(pa, field.type))
        for field in msgspec.inspect.type_info(struct).fields  # type: ignore[attr-defined]
    ]


def _arrow(pa: Any, kind: Any) -> Any:
    inspect = msgspec.inspect
    match kind:
        case inspect.StructType():
            return pa.struct(_fields(pa, kind.cls))
        case inspect.DictType():
            return pa.map_(_arrow(pa, kind.key_type), _arrow(pa, kind.value_type))
        case inspect.VarTupleType() | inspect.ListType():
            return pa.list_(_arrow(pa, kind.item_type))
        case inspect.UnionType():
            (inner,) = (t for t in kind.types if not isinstance(t, inspect.NoneType))
            return _arrow(pa, inner)
        case inspect.FloatType():
            return pa.float64()
        case inspect.IntType():
            return pa.int64()
        case inspect.BoolType():
            return pa.bool_()
        case inspect.BytesType():
            return pa.binary()
        case inspect.StrType() | inspect.LiteralType():
            return pa.string()
    raise TypeError(f"no Parquet type for {kind}")

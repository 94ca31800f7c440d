"""Decision logs of every kind, several at once, in memory that does not grow with them."""

import asyncio
import dataclasses
import gzip
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from learnedrecords import decided

from kvferry.integrations.learning.chunk import Chunk, chunks_of
from kvferry.integrations.learning.collector import Collector
from kvferry.integrations.learning.json_lines import records_of
from kvferry.integrations.learning.sources import read_chunks, read_rows
from kvferry.integrations.learning.tally import Tally
from kvferry.integrations.log.codec import write_outcome, write_record
from kvferry.integrations.log.export import export
from kvferry.integrations.log.record import DecisionRecord
from kvferry.integrations.log.source import SourceError
from kvferry.integrations.redis.connection import open_store
from kvferry.integrations.redis.streams import Entry, Streams
from kvferry.models.training.rows import Rows

replace = msgspec.structs.replace


def read(*sources: Path | str, most: int = 1000) -> tuple[Rows, Tally]:
    tally = Tally()
    return read_rows([str(source) for source in sources], tally, most=most), tally


@pytest.fixture
def odd(records) -> list[DecisionRecord]:  # type: ignore[no-untyped-def]
    """With some of each kind that is not learned from."""
    return [
        *records,
        replace(records[0], id="1", mode="shadow"),
        replace(records[1], id="2", outcome=None),
        replace(records[2], id="3", features=(), feature_set=""),
        replace(records[3], id="4", feature_set="v9", features=(1.0, 2.0)),
        replace(records[4], id="5", outcome=msgspec.structs.replace(records[4].outcome, status="failed")),
        replace(records[5], id="6", outcome=replace(records[5].outcome, rescued_from=("a",), served_by="b")),
        replace(records[6], id="7", model_version="m-0123456789ab", fallback="unlike"),
        replace(records[7], id="8", model_version="m-0123456789ab"),
        replace(records[8], id="9", outcome=replace(records[8].outcome, retractions=2)),
    ]


def test_every_kind_of_file_gives_the_same_columns(odd, written, tmp_path) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("pyarrow")
    lines, packed, parquet = written(odd), tmp_path / "log.jsonl.gz", tmp_path / "log.parquet"
    packed.write_bytes(gzip.compress(lines.read_bytes()))
    export(odd, parquet)
    found = [
        list(read_chunks([str(file)], Tally(), lambda done, of: None)) for file in (lines, packed, parquet)
    ]
    for chunks in found:
        assert len(chunks) == 1
    for field in dataclasses.fields(Chunk):
        expected = getattr(found[0][0], field.name)
        for (chunk,) in found[1:]:
            column = getattr(chunk, field.name)
            assert column.dtype == expected.dtype
            assert np.array_equal(column, expected, equal_nan=expected.dtype.kind == "f"), field.name
    tallies = [read(file)[1].told() for file in (lines, packed, parquet)]
    assert tallies[0] == tallies[1] == tallies[2]
    assert tallies[0]["kept"] == len(odd) - 6


def test_parquet_of_an_older_kvferry_lacks_columns(odd, tmp_path) -> None:  # type: ignore[no-untyped-def]
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "log.parquet"
    export(odd, file)
    table = parquet.read_table(file)
    parquet.write_table(table.drop_columns(["features", "feature_set", "fallback", "mode"]), file)
    _, tally = read(file)
    assert (tally.read, tally.kept) == (len(odd), 0)
    assert tally.dropped["no_features"] > 50
    parquet.write_table(table.drop_columns(["catalogue_transfer_s"]), file)
    rows, tally = read(file)
    assert len(rows) > 50
    assert rows.catalogue_s is not None
    assert np.isnan(rows.catalogue_s).all()
    parquet.write_table(pa.table({"name": ["x"]}), file)
    with pytest.raises(SourceError, match="is no decision log: it has no column 'id'"):
        read(file)


def test_several_sources_are_one_log_whatever_their_order(records, written, tmp_path) -> None:  # type: ignore[no-untyped-def]
    first, second = written(records[:40], "a.jsonl"), written(records[30:], "b.jsonl")
    rows, tally = read(second, first)
    assert len(rows) == len(records)
    assert tally.dropped["duplicate"] == 10
    again, twice = read(tmp_path, first, tmp_path)
    assert again.data_sha256 == rows.data_sha256
    assert twice.read == 70  # a file that two sources name is read once


def test_bad_lines_are_counted_and_told_of(records, written) -> None:  # type: ignore[no-untyped-def]
    file = written(records)
    file.write_bytes(b'\n{"schema":"kvferry.decision.v9"}\n' + file.read_bytes() + b'{"id": "x", "ti')
    rows, tally = read(file)
    assert len(rows) == len(records)
    assert tally.bad == 2
    assert "log.jsonl:2: schema 'kvferry.decision.v9' is not" in tally.first_bad


def test_a_packed_file_that_ends_early_gives_what_it_has(records, written, tmp_path) -> None:  # type: ignore[no-untyped-def]
    packed = tmp_path / "log.jsonl.gz"
    packed.write_bytes(gzip.compress(written(records).read_bytes())[:-200])
    rows, tally = read(packed)
    assert 0 < len(rows) <= len(records)
    assert "the file ends here" in tally.first_bad


def test_progress_reaches_the_end(records, written) -> None:  # type: ignore[no-untyped-def]
    seen: list[tuple[float, float]] = []
    file = written(records)
    read_rows([str(file)], Tally(), progress=lambda done, total: seen.append((done, total)))
    size = file.stat().st_size
    assert seen[-1] == (size, size)
    assert all(done <= total == size for done, total in seen)


def test_only_a_chunk_of_records_is_in_memory_at_a_time() -> None:
    line = write_record(decided(1))

    def endless(count: int) -> Iterator[bytes]:
        for _ in range(count):
            yield bytes(line)

    def peak(count: int) -> int:
        tracemalloc.start()
        for chunk in chunks_of(records_of(endless(count), "log", Tally()), size=200):
            assert len(chunk) <= 200
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(200)
    assert peak(4000) < 1.5 * peak(400)


def test_too_many_rows_are_thinned_evenly_and_always_the_same_ones(written) -> None:  # type: ignore[no-untyped-def]
    many = [decided(n) for n in range(400)]
    rows, tally = read(written(many), most=150)
    other, _ = read(written(many[::-1]), most=150)
    assert other.data_sha256 == rows.data_sha256
    assert 40 < len(rows) <= 150
    assert tally.kept == len(rows)
    assert tally.dropped["thinned"] == 400 - len(rows)
    assert 0.25 < (rows.time_s < many[200].time).mean() < 0.75


def test_without_predictions_rows_have_none(records) -> None:  # type: ignore[no-untyped-def]
    from kvferry.integrations.learning.cleaner import cleaned

    whole, lean = Collector(Tally()), Collector(Tally(), predictions=False)
    for chunk in chunks_of(records):
        whole.add(cleaned(chunk, Tally()))
        lean.add(cleaned(chunk, Tally()))
    with_them, without = whole.rows(), lean.rows()
    assert without.predicted_s is None
    assert np.isnan(without.predicted_p50).all()
    assert np.isfinite(with_them.predicted_p50).all()
    assert without.data_sha256 == with_them.data_sha256


def test_a_store_s_stream_and_a_file_of_the_same_requests_are_one_log(records, written) -> None:  # type: ignore[no-untyped-def]
    with asyncio.Runner() as runner:
        store = runner.run(open_store())
        try:
            entries = [
                Entry("decision", each.id, write_record(replace(each, outcome=None))) for each in records
            ]
            entries += [Entry("outcome", each.id, write_outcome(each.outcome)) for each in records[:-1]]
            runner.run(Streams(store).add([*entries, Entry("decision", "x", b"{broken")]))
            assert store.embedded is not None
            rows, tally = read(store.embedded.url)
            both, _ = read(store.embedded.url, written(records[:-1]))
        finally:
            runner.run(store.close())
    assert (len(rows), tally.bad, tally.dropped["no_outcome"]) == (len(records) - 1, 1, 1)
    assert both.data_sha256 == rows.data_sha256


def test_cluster_tables_stand_among_the_records_and_are_passed_over(records, written) -> None:  # type: ignore[no-untyped-def]
    file = written(records)
    file.write_bytes(b'{"schema":"kvferry.cluster.v1","id":"c"}\n' + file.read_bytes())
    rows, tally = read(file)
    assert (len(rows), tally.bad) == (len(records), 0)

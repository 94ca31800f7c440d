import asyncio
import gzip
import json
from pathlib import Path

import msgspec
import pytest

from kvferry.integrations.log.codec import write_outcome, write_record
from kvferry.integrations.log.export import export
from kvferry.integrations.log.follow import follow_file, follow_store
from kvferry.integrations.log.jsonl import JsonlWriter
from kvferry.integrations.log.reader import ReadReport, read_log
from kvferry.integrations.log.record import DecisionRecord
from kvferry.integrations.log.source import SourceError
from kvferry.integrations.redis.connection import open_store
from kvferry.integrations.redis.streams import Entry, Streams


@pytest.mark.parametrize("name", ["copy.jsonl", "copy.jsonl.gz", "copy.parquet"])
def test_an_export_reads_back_equal(tmp_path: Path, samples: list[DecisionRecord], name: str) -> None:
    unfinished = msgspec.structs.replace(samples[0], outcome=None, id="unfinished", alternatives=())
    records = [*samples, unfinished]
    assert export(records, tmp_path / name) == len(records)
    assert list(read_log(str(tmp_path / name))) == records
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_parquet_over_several_row_groups_keeps_order(tmp_path: Path, samples: list[DecisionRecord]) -> None:
    many = [msgspec.structs.replace(samples[n % 40], id=str(n)) for n in range(2500)]
    export(many, tmp_path / "x.parquet")
    assert list(read_log(str(tmp_path / "x.parquet"))) == many


def test_parquet_columns_are_those_of_the_record(tmp_path: Path, samples: list[DecisionRecord]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    export(samples, tmp_path / "x.parquet")
    table = parquet.read_table(tmp_path / "x.parquet")
    assert set(table.column_names) == set(DecisionRecord.__struct_fields__)
    ttft = table["outcome"].combine_chunks().field("ttft_s").to_pylist()
    assert next(value for value in ttft if value is not None) == samples[0].outcome.ttft_s  # type: ignore[union-attr]


def test_bad_lines_are_counted_and_skipped(log_file: Path, samples: list[DecisionRecord]) -> None:
    lines = log_file.read_bytes().splitlines()
    lines.insert(1, b"{broken")
    lines.insert(5, json.dumps({"schema": "other.v1"}).encode())
    lines.insert(6, b"\xff\x00\xfe")
    lines.insert(7, b"")
    log_file.write_bytes(b"\n".join(lines))
    report = ReadReport()
    assert list(read_log(str(log_file), report)) == samples
    assert (report.read, report.bad) == (40, 3)
    assert report.first_bad.startswith(f"{log_file}:2: not a JSON record")


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".parquet", ".jsonl"])
def test_a_file_of_noise_is_one_report_and_no_crash(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"noise{suffix}"
    path.write_bytes(bytes(range(1, 200)))
    report = ReadReport()
    assert list(read_log(str(path), report)) == []
    assert report.bad >= 1
    assert "noise" in report.first_bad


def test_a_gzip_cut_short_gives_what_is_there(tmp_path: Path, samples: list[DecisionRecord]) -> None:
    path = tmp_path / "cut.jsonl.gz"
    # one gzip member a record, so that only the last is lost
    members = [gzip.compress(write_record(record) + b"\n") for record in samples]
    path.write_bytes(b"".join(members)[:-20])
    report = ReadReport()
    read = list(read_log(str(path), report))
    assert read == samples[: len(read)]
    assert len(read) >= len(samples) - 10
    assert report.bad == 1


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path, samples: list[DecisionRecord]) -> None:
    export(samples[:10], tmp_path / "a.parquet")
    export(samples[10:20], tmp_path / "b.jsonl.gz")
    export(samples[20:], tmp_path / "c.jsonl")
    (tmp_path / "notes.txt").write_text("not a log")
    assert list(read_log(str(tmp_path))) == samples


@pytest.mark.parametrize(
    ("source", "message", "usage"),
    [
        ("nothing.jsonl", "no such file", False),
        ("notes.txt", "expected .jsonl", True),
        ("empty", "no .jsonl", False),
        ("ftp://u:hunter2@h", "cannot use store URL", True),
        ("redis://u:hunter2@127.0.0.1:1", "does not answer", False),
    ],
)
def test_a_source_that_cannot_be_read_is_one_line(
    tmp_path: Path, source: str, message: str, usage: bool
) -> None:
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match=message) as told:
        list(read_log(source if "://" in source else str(tmp_path / source)))
    assert told.value.usage is usage
    assert "hunter2" not in str(told.value)
    assert "\n" not in str(told.value)


def test_an_interrupted_export_leaves_the_old_file(tmp_path: Path, samples: list[DecisionRecord]) -> None:
    target = tmp_path / "x.jsonl"
    export(samples[:3], target)

    def breaks():  # type: ignore[no-untyped-def]
        yield samples[0]
        raise SourceError("the source went away")

    with pytest.raises(SourceError, match="went away"):
        export(breaks(), target)
    assert list(read_log(str(target))) == samples[:3]
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]


def test_a_store_is_read_with_outcomes_joined_and_repeats_dropped(samples: list[DecisionRecord]) -> None:
    with asyncio.Runner() as runner:
        store = runner.run(open_store())
        try:
            decided = [msgspec.structs.replace(record, outcome=None) for record in samples]
            entries = [Entry("decision", record.id, write_record(record)) for record in decided]
            ended = [
                Entry("outcome", record.id, write_outcome(record.outcome))
                for record in samples[:-1]
                if record.outcome is not None
            ]
            broken = Entry("decision", "x", b"{broken")
            runner.run(Streams(store).add([*entries, *entries[:5], broken, *ended]))
            report = ReadReport()
            assert store.embedded is not None
            read = list(read_log(store.embedded.url, report))
            assert read == [*samples[:-1], decided[-1]]
            assert (report.read, report.bad) == (40, 1)
        finally:
            runner.run(store.close())


def test_following_a_file_sees_what_is_appended_also_over_a_rotation(
    tmp_path: Path, samples: list[DecisionRecord]
) -> None:
    writer = JsonlWriter(tmp_path / "decisions.jsonl", max_bytes=15_000)
    writer.write(samples[0])
    rest = iter(samples[1:12])

    def pause() -> None:
        if (record := next(rest, None)) is None:
            raise TimeoutError
        writer.write(record)

    following = follow_file(writer.path, ReadReport(), pause=pause)
    assert [next(following) for _ in range(11)] == samples[1:12]
    with pytest.raises(TimeoutError):
        next(following)
    assert len(list(tmp_path.iterdir())) > 1


def test_following_a_store_yields_a_request_when_it_has_ended(samples: list[DecisionRecord]) -> None:
    record = samples[0]
    assert record.outcome is not None
    with asyncio.Runner() as runner:
        store = runner.run(open_store())
        try:
            streams = Streams(store)
            old = Entry("outcome", "from before", write_outcome(record.outcome))
            runner.run(streams.add([old]))

            async def later() -> None:
                await asyncio.sleep(0.1)
                unfinished = msgspec.structs.replace(record, outcome=None)
                await streams.add([Entry("decision", record.id, write_record(unfinished))])
                await asyncio.sleep(0.1)
                await streams.add([Entry("outcome", record.id, write_outcome(record.outcome))])  # type: ignore[arg-type]

            task = runner.get_loop().create_task(later())
            assert next(follow_store(store, ReadReport(), runner)) == record
            assert task.done()
        finally:
            runner.run(store.close())

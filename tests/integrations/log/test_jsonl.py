import os
from pathlib import Path

import pytest

from kvferry.integrations.log.background import BackgroundLog
from kvferry.integrations.log.jsonl import JsonlWriter
from kvferry.integrations.log.reader import ReadReport, read_log
from kvferry.integrations.log.record import DecisionRecord


def test_each_write_is_on_file_at_once_and_reads_back(tmp_path: Path, samples: list[DecisionRecord]) -> None:
    writer = JsonlWriter(tmp_path / "a" / "decisions.jsonl")
    for n, record in enumerate(samples, 1):
        writer.write(record)
        if n % 20 == 0:
            assert list(read_log(str(writer.path))) == samples[:n]
    writer.close()


def test_rotation_keeps_the_newest_files_and_loses_nothing_else(
    tmp_path: Path, samples: list[DecisionRecord], monkeypatch
) -> None:
    monkeypatch.setenv("KVFERRY_STATE_DIR", str(tmp_path))
    writer = JsonlWriter(tmp_path / "decisions.jsonl", max_bytes=20_000, keep=100)
    for record in samples:
        writer.write(record)
    files = sorted(tmp_path.glob("decisions*.jsonl"))
    assert len(files) > 3
    assert all(path.stat().st_size <= 20_000 for path in files)
    assert list(read_log()) == samples  # the default source, in order over all files
    writer = JsonlWriter(tmp_path / "decisions.jsonl", max_bytes=20_000, keep=2)
    for record in samples:
        writer.write(record)
    assert len(list(tmp_path.glob("decisions-*.jsonl"))) == 2
    assert list(read_log())[-1] == samples[-1]


def test_a_line_cut_short_by_a_crash_does_not_spoil_the_next(
    tmp_path: Path, samples: list[DecisionRecord]
) -> None:
    path = tmp_path / "decisions.jsonl"
    JsonlWriter(path).write(*samples[:2])
    path.write_bytes(path.read_bytes()[:-40])
    JsonlWriter(path).write(samples[2])
    report = ReadReport()
    assert list(read_log(str(path), report)) == [samples[0], samples[2]]
    assert report.bad == 1


def test_a_file_moved_away_is_written_anew(tmp_path: Path, samples: list[DecisionRecord]) -> None:
    writer = JsonlWriter(tmp_path / "decisions.jsonl")
    writer.write(samples[0])
    os.rename(writer.path, tmp_path / "old.jsonl")
    writer.write(samples[1])
    assert list(read_log(str(writer.path))) == [samples[1]]
    assert list(read_log(str(tmp_path / "old.jsonl"))) == [samples[0]]


def test_two_writers_of_one_file_do_not_mix_lines(tmp_path: Path, samples: list[DecisionRecord]) -> None:
    one, two = (JsonlWriter(tmp_path / "decisions.jsonl", max_bytes=30_000) for _ in range(2))
    for first, second in zip(samples[::2], samples[1::2], strict=True):
        one.write(first)
        two.write(second)
    assert list(read_log(str(tmp_path))) == samples


async def test_the_background_log_writes_all_before_it_closes(
    tmp_path: Path, samples: list[DecisionRecord]
) -> None:
    log = BackgroundLog(JsonlWriter(tmp_path / "decisions.jsonl"))
    log.start()
    for record in samples:
        log.put(record)
    await log.close()
    assert (log.written, log.dropped) == (len(samples), 0)
    assert list(read_log(str(tmp_path))) == samples


def test_a_write_that_a_full_disk_cuts_short_is_taken_back(
    tmp_path: Path, samples: list[DecisionRecord], monkeypatch
) -> None:
    writer = JsonlWriter(tmp_path / "decisions.jsonl")
    writer.write(samples[0])
    whole = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda handle, data: whole(handle, data[: len(data) // 2]))
        with pytest.raises(OSError, match="no space"):
            writer.write(samples[1])
    writer.write(samples[2])
    assert list(read_log(str(writer.path))) == [samples[0], samples[2]]


def test_two_processes_that_rotate_at_once_lose_nothing(
    tmp_path: Path, samples: list[DecisionRecord], monkeypatch
) -> None:
    writer = JsonlWriter(tmp_path / "decisions.jsonl", max_bytes=1)
    writer.write(samples[0])
    stay = Path.rename

    def beaten(path: Path, target: Path) -> Path:
        stay(path, path.with_name("decisions-20260101T000000.jsonl"))  # the other one was faster
        return stay(path, target)

    monkeypatch.setattr(Path, "rename", beaten)
    writer.write(samples[1])
    assert sorted(map(len, (path.read_bytes() for path in tmp_path.glob("*.jsonl")))) > [0, 0]
    monkeypatch.undo()
    assert {record.id for record in read_log(str(tmp_path))} == {samples[0].id, samples[1].id}

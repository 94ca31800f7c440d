from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.integrations.redis.spool import Spool
from kvferry.integrations.redis.streams import Entry


def entries(start: int, stop: int) -> list[Entry]:
    return [Entry("decision" if n % 2 else "outcome", f"id-{n}", b'{"n":%d}' % n) for n in range(start, stop)]


def drain(spool: Spool, n: int = 7) -> list[Entry]:
    out: list[Entry] = []
    while batch := spool.peek(n):
        out += batch
        spool.consume(len(batch))
    return out


def test_what_was_not_delivered_is_there_after_a_restart(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "s", segment_bytes=200)
    assert spool.append(entries(0, 30)) == 0
    spool.consume(len(spool.peek(4)))
    spool.close()
    again = Spool(tmp_path, "s", segment_bytes=200)
    read = drain(again)
    assert read[-26:] == entries(4, 30)
    assert set(read) <= set(entries(0, 30))  # a repeat of the half-delivered segment is allowed
    assert again.pending == again.size_bytes == 0
    assert not list(tmp_path.rglob("*.jsonl"))


def test_a_full_spool_keeps_the_oldest_and_counts_the_rest(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "s", max_bytes=500)
    lost = sum(spool.append(entries(n, n + 1)) for n in range(50))
    kept = drain(spool)
    assert 0 < lost < 50
    assert kept == entries(0, 50 - lost)
    assert spool.append(entries(0, 1)) == 0  # room again


def test_routers_on_one_host_do_not_share_and_the_next_one_takes_over(tmp_path: Path) -> None:
    first, second = Spool(tmp_path, "s"), Spool(tmp_path, "s")
    first.append(entries(0, 3))
    second.append(entries(10, 13))
    assert second.peek(10) == entries(10, 13)
    first.close()
    second.close()
    third = Spool(tmp_path, "s")
    assert third.pending == 6
    assert sorted(drain(third)) == sorted(entries(0, 3) + entries(10, 13))


def test_another_stores_entries_are_left_alone(tmp_path: Path) -> None:
    first = Spool(tmp_path, "one store")
    first.append(entries(0, 3))
    first.close()
    assert Spool(tmp_path, "another store").peek(10) == []


def test_a_line_cut_short_by_a_crash_costs_only_itself(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "s")
    spool.append(entries(0, 3))
    spool.close()
    (segment,) = tmp_path.rglob("*.jsonl")
    segment.write_bytes(segment.read_bytes()[:-5])
    again = Spool(tmp_path, "s")
    again.append(entries(3, 5))
    assert drain(again) == entries(0, 2) + entries(3, 5)
    assert again.pending == 0


def test_a_failed_write_leaves_no_half_line(tmp_path: Path) -> None:
    class Full:
        def __init__(self, real) -> None:  # type: ignore[no-untyped-def]
            self.real = real

        def __getattr__(self, name: str) -> object:
            return getattr(self.real, name)

        def write(self, data: bytes) -> int:
            return self.real.write(data[: len(data) // 2])  # type: ignore[no-any-return]

    spool = Spool(tmp_path, "s")
    spool.append(entries(0, 2))
    real, spool._tail = spool._tail, Full(spool._tail)  # type: ignore[assignment]
    with pytest.raises(OSError, match="no space"):
        spool.append(entries(2, 9))
    spool._tail = real
    spool.append(entries(2, 9))
    assert drain(spool) == entries(0, 9)


@given(steps=st.lists(st.integers(-9, 9), max_size=40))
def test_in_order_and_nothing_lost_however_writing_and_reading_mix(
    tmp_path_factory, steps: list[int]
) -> None:
    spool = Spool(tmp_path_factory.mktemp("spool"), "s", segment_bytes=150)
    written, read = 0, []
    for step in steps:
        if step > 0:
            spool.append(entries(written, written + step))
            written += step
        else:
            batch = spool.peek(-step)
            read += batch
            spool.consume(len(batch))
        assert spool.pending == written - len(read)
    assert read + drain(spool) == entries(0, written)
    spool.close()

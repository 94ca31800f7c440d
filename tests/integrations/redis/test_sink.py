import asyncio
import logging
import signal
from pathlib import Path

import pytest

from kvferry.integrations.log.codec import read_record
from kvferry.integrations.log.jsonl import JsonlWriter
from kvferry.integrations.log.record import Chosen, DecisionRecord, Outcome
from kvferry.integrations.redis.connection import Store, open_store
from kvferry.integrations.redis.leases import LeaseEntry, Leases, LeaseTotals
from kvferry.integrations.redis.sink import Sink
from kvferry.integrations.redis.streams import Streams


def record(n: int) -> DecisionRecord:
    return DecisionRecord(
        id=f"id-{n:05d}",
        time=float(n),
        reason="queue_gain",
        chosen=Chosen("split:p>d@nixl", "split", "p", "d", "nixl"),
    )


async def read(store: Store, kind: str = "decision") -> list[str]:
    """Ids in stream order, repeats dropped."""
    stream = Streams(store).read(kind)  # type: ignore[arg-type]
    return list(dict.fromkeys([entry.id async for _, entry in stream]))


async def holds(leases: Leases, totals: dict[str, dict[str, LeaseTotals]]) -> bool:
    return await leases.totals() == totals


def store_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "kvferry.redis"]


async def test_decisions_outcomes_and_the_log_file_arrive(store, tmp_path: Path, eventually) -> None:
    writer = JsonlWriter(tmp_path / "log" / "decisions.jsonl")
    sink = Sink(store, router="r1", state_dir=tmp_path, log=writer)
    sink.start()
    for n in range(2000):
        sink.decision(record(n))
        sink.outcome(record(n).id, Outcome(ttft_s=0.1))
        sink.joined(record(n))
    await eventually(lambda: sink.delivered == 4000)
    assert sink.up
    assert (sink.queued, sink.spooled, sink.dropped) == (0, 0, 0)
    await sink.close()
    ids = [record(n).id for n in range(2000)]
    assert await read(store) == ids
    assert await read(store, "outcome") == ids
    lines = writer.path.read_bytes().splitlines()
    assert [read_record(line) for line in lines] == [record(n) for n in range(2000)]
    assert sink.log_written == 2000


async def test_a_store_killed_and_restarted_in_mid_run_loses_nothing(
    own_server, tmp_path: Path, eventually, caplog
) -> None:
    caplog.set_level(logging.INFO)
    store = await open_store(own_server.url)
    sink = Sink(store, router="r1", state_dir=tmp_path, retry_s=0.05)
    sink.start()
    for n in range(900):
        sink.decision(record(n))
        sink.outcome(record(n).id, Outcome())
        if n == 300:
            await eventually(lambda: sink.delivered > 100)
            own_server.kill()
        if n == 600:
            await eventually(lambda: sink.spooled > 300)
            assert not sink.up
            await asyncio.to_thread(own_server.start)
        if n % 10 == 0:
            await asyncio.sleep(0.002)
    await eventually(lambda: sink.up and not sink.queued and not sink.spooled)
    assert sink.dropped == 0
    assert await read(store) == [record(n).id for n in range(900)]
    assert await read(store, "outcome") == [record(n).id for n in range(900)]
    await sink.close()
    await store.close()
    lines = store_lines(caplog)
    assert len(lines) == 2
    assert "lost" in lines[0]
    assert "is back" in lines[1]


async def test_a_paused_store_blocks_nobody(own_server, tmp_path: Path, eventually) -> None:
    store = await open_store(own_server.url, timeout_s=0.3)
    sink = Sink(store, router="r1", state_dir=tmp_path, retry_s=0.05)
    sink.start()
    sink.decision(record(0))
    await eventually(lambda: sink.delivered == 1)
    own_server.signal(signal.SIGSTOP)
    try:
        # were any call to wait for the store, this would never reach the line that resumes it
        for n in range(1, 3000):
            sink.decision(record(n))
            sink.lease_acquire(record(n).id, [LeaseEntry("p", 10)])
            sink.lease_release(record(n).id)
            if n % 100 == 0:
                await asyncio.sleep(0)
        await eventually(lambda: not sink.up and sink.spooled + sink.queued >= 2999)
    finally:
        own_server.signal(signal.SIGCONT)
    await eventually(lambda: sink.up and not sink.queued and not sink.spooled)
    assert await read(store) == [record(n).id for n in range(3000)]
    assert await Leases(store, "other").totals() == {}
    await sink.close()
    await store.close()


async def test_the_next_start_delivers_what_was_left(own_server, tmp_path: Path, eventually) -> None:
    own_server.kill()
    store = await open_store(own_server.url)
    first = Sink(store, router="r1", state_dir=tmp_path)
    first.start()
    for n in range(50):
        first.decision(record(n))
    await first.close(drain_s=0.2)
    assert first.dropped == 0
    await asyncio.to_thread(own_server.start)
    second = Sink(store, router="r1", state_dir=tmp_path)
    assert second.spooled == 50
    second.start()
    second.decision(record(50))
    await eventually(lambda: second.delivered >= 51)
    assert await read(store) == [record(n).id for n in range(51)]
    await second.close()
    await store.close()


async def test_a_full_spool_drops_the_newest_and_counts_them(own_server, tmp_path: Path, eventually) -> None:
    own_server.kill()
    store = await open_store(own_server.url)
    sink = Sink(store, router="r1", state_dir=tmp_path, spool_max_bytes=20_000, retry_s=0.05)
    sink.start()
    for n in range(200):
        sink.decision(record(n))
    await eventually(lambda: sink.dropped > 0 and sink.queued == 0)
    kept = sink.spooled
    assert kept + sink.dropped == 200
    await asyncio.to_thread(own_server.start)
    await eventually(lambda: sink.spooled == 0)
    assert await read(store) == [record(n).id for n in range(kept)]
    await sink.close()
    await store.close()


async def test_leases_are_written_anew_after_an_outage(own_server, tmp_path: Path, eventually) -> None:
    store = await open_store(own_server.url)
    sink = Sink(store, router="r1", state_dir=tmp_path, retry_s=0.05)
    other = Leases(store, "r2")
    sink.start()
    sink.lease_acquire("stays", [LeaseEntry("p", 100, 0, 0), LeaseEntry("d", 0, 1, 128)])
    sink.lease_acquire("goes", [LeaseEntry("p", 1000)])
    await eventually(lambda: holds(other, {"r1": {"p": LeaseTotals(1100), "d": LeaseTotals(0, 1, 128)}}))
    own_server.kill()
    sink.lease_release("goes")
    sink.lease_prefill_done("stays")
    await eventually(lambda: not sink.up)
    await asyncio.to_thread(own_server.start)
    await eventually(lambda: sink.up)
    assert await other.totals() == {"r1": {"d": LeaseTotals(0, 1, 128)}}
    sink.lease_release("stays")
    await eventually(lambda: holds(other, {}))
    assert sink.live_leases == 0
    await sink.close()
    await store.close()


async def test_closing_gives_the_leases_back(store, tmp_path: Path, eventually) -> None:
    sink = Sink(store, router="r1", state_dir=tmp_path)
    sink.start()
    sink.lease_acquire("x", [LeaseEntry("p", 100)])
    await eventually(lambda: holds(Leases(store, "r2"), {"r1": {"p": LeaseTotals(100)}}))
    await sink.close()
    assert await Leases(store, "r2").totals() == {}


async def test_a_lease_lost_by_the_store_is_renewed_into_being(store, tmp_path: Path, eventually) -> None:
    sink = Sink(store, router="r1", state_dir=tmp_path, lease_ttl_s=0.3)
    sink.start()
    sink.lease_acquire("x", [LeaseEntry("p", 100)])
    leases = Leases(store, "r2")
    await eventually(lambda: holds(leases, {"r1": {"p": LeaseTotals(100)}}))
    await store.client.delete(store.keys.leases, store.keys.lease_expiry, store.keys.lease_totals)
    await eventually(lambda: holds(leases, {"r1": {"p": LeaseTotals(100)}}))
    await sink.close()


async def test_no_secret_reaches_the_log(tmp_path: Path, eventually, caplog) -> None:
    store = await open_store("redis://user:hunter2@127.0.0.1:1/0")
    sink = Sink(store, router="r1", state_dir=tmp_path)
    sink.start()
    sink.decision(record(0))
    await eventually(lambda: not sink.up)
    await sink.close(drain_s=0.1)
    assert "hunter2" not in caplog.text
    assert "***@127.0.0.1:1" in caplog.text
    await store.close()


async def test_an_unwritable_state_dir_is_said_and_survived(
    store, tmp_path: Path, eventually, caplog
) -> None:
    (tmp_path / "spool").write_text("in the way")
    sink = Sink(store, router="r1", state_dir=tmp_path)
    sink.start()
    sink.decision(record(0))
    await eventually(lambda: sink.delivered == 1)
    await sink.close()
    assert [line for line in store_lines(caplog) if "no spool" in line] != []


async def test_a_failing_log_file_is_counted_and_survived(store, tmp_path: Path, eventually, caplog) -> None:
    (tmp_path / "log").write_text("in the way")
    sink = Sink(store, router="r1", state_dir=tmp_path, log=JsonlWriter(tmp_path / "log" / "x.jsonl"))
    sink.start()
    sink.joined(record(0))
    await eventually(lambda: "records wait in memory" in caplog.text)
    (tmp_path / "log").unlink()
    sink.joined(record(1))
    await eventually(lambda: sink.log_written == 2)
    assert sink.log_dropped == 0
    await sink.close()

"""A Cluster, a Sentinel, TLS with ACL: the same code against each, on a real server."""

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kvferry.integrations.log.record import Outcome
from kvferry.integrations.redis.connection import Store, open_store
from kvferry.integrations.redis.embedded import server_binary
from kvferry.integrations.redis.health import Health
from kvferry.integrations.redis.learned import Learned
from kvferry.integrations.redis.leases import LeaseEntry, Leases, LeaseTotals
from kvferry.integrations.redis.sink import Sink
from kvferry.integrations.redis.streams import Streams
from kvferry.integrations.redis.url import StoreError
from kvferry.integrations.redis.workers import PublishedWorker, Workers
from kvferry.integrations.sglang.local.ports import free_ports
from kvferry.models.output_lengths import OutputLengths


@pytest.fixture(params=["valkey", "redis"])
def binary(request: pytest.FixtureRequest) -> str:
    found = shutil.which("redis-server") if request.param == "redis" else str(server_binary())
    if found is None:
        pytest.skip("redis-server is not installed (Debian package redis-server)")
    return found


@contextlib.asynccontextmanager
async def running(binary: str, *arguments: str) -> AsyncIterator[None]:
    process = subprocess.Popen([binary, *arguments], stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220
    try:
        await asyncio.sleep(0.2)
        if process.poll() is not None:
            assert process.stdout is not None
            said = process.stdout.read()
            if "tls" in said:
                pytest.skip(f"{binary} is built without TLS")
            raise RuntimeError(f"{binary} {arguments} ended: {said[-300:]}")
        yield
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


async def answering(store: Store, eventually) -> None:  # type: ignore[no-untyped-def]
    async def check() -> bool:
        try:
            await store.check()
        except StoreError:
            return False
        return True

    await eventually(check)


async def everything_works(store: Store, tmp_path: Path, eventually) -> None:  # type: ignore[no-untyped-def]
    await answering(store, eventually)
    workers, leases = Workers(store), Leases(store, "r2")
    for name in "abc":
        await workers.publish(PublishedWorker(id=name, url=f"http://{name}"), 60)
    assert [worker.id for worker in await workers.list()] == ["a", "b", "c"]
    sink = Sink(store, router="r1", state_dir=tmp_path)
    sink.start()
    sink.outcome("x", Outcome())
    sink.outcome("y", Outcome())
    sink.lease_acquire("x", [LeaseEntry("a", 5), LeaseEntry("b", 0, 1, 9)])
    await eventually(lambda: sink.delivered == 2)
    assert [entry.id async for _, entry in Streams(store).read("outcome")] == ["x", "y"]

    async def leased() -> bool:
        return await leases.totals() == {"r1": {"a": LeaseTotals(5), "b": LeaseTotals(0, 1, 9)}}

    await eventually(leased)
    assert sink.up
    await sink.close()
    assert await leases.totals() == {}
    heard = OutputLengths()
    for name, lengths in (("r1", OutputLengths()), ("r2", heard)):
        lengths.observe("m", 10.0)
        await Learned(store, [lengths], router=name, health=Health("")).refresh()
    assert heard.answers("m") == pytest.approx(2.0)
    await store.close()


async def test_cluster(binary: str, tmp_path: Path, eventually) -> None:
    port, bus_port = free_ports(2)
    async with running(
        binary, "--port", str(port), "--cluster-enabled", "yes", "--cluster-port", str(bus_port),
        "--save", "", "--dir", str(tmp_path),
    ):  # fmt: skip
        plain = await open_store(f"redis://127.0.0.1:{port}")
        await answering(plain, eventually)
        await plain.client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)

        async def formed() -> bool:
            return (await plain.client.cluster("INFO"))["cluster_state"] == "ok"

        await eventually(formed)
        await plain.close()
        await everything_works(await open_store(f"redis+cluster://127.0.0.1:{port}"), tmp_path, eventually)


async def test_sentinel(binary: str, tmp_path: Path, eventually) -> None:
    port, sentinel_port = free_ports(2)
    conf = tmp_path / "sentinel.conf"
    conf.write_text(f"port {sentinel_port}\ndir {tmp_path}\nsentinel monitor kv 127.0.0.1 {port} 1\n")
    async with (
        running(binary, "--port", str(port), "--save", "", "--dir", str(tmp_path)),
        running(binary, str(conf), "--sentinel"),
    ):
        store = await open_store(f"redis+sentinel://127.0.0.1:{sentinel_port}/kv")
        await everything_works(store, tmp_path, eventually)


async def test_tls_and_acl(binary: str, tmp_path: Path, eventually) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(  # noqa: ASYNC221
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(cert),
         "-days", "1", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    (port,) = free_ports(1)
    conf = tmp_path / "tls.conf"
    conf.write_text(
        f"port 0\ntls-port {port}\ntls-cert-file {cert}\ntls-key-file {key}\ntls-auth-clients no\n"
        f'save ""\ndir {tmp_path}\nuser ferry on >s3cret ~{{kvferry}}:* +@all\nuser default off\n'
    )
    async with running(binary, str(conf)):
        query = f"?ssl_ca_certs={cert}"
        await everything_works(
            await open_store(f"rediss://ferry:s3cret@127.0.0.1:{port}/0{query}"), tmp_path, eventually
        )
        wrong = await open_store(f"rediss://ferry:wrong-one@127.0.0.1:{port}/0{query}")
        with pytest.raises(StoreError) as told:
            await wrong.check()
        assert "wrong-one" not in str(told.value)
        await wrong.close()

"""The sink thread against real servers: up, down, slow, refusing, and every way to reach one."""

import contextlib
import logging
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from kvferry.integrations.redis.embedded import server_binary
from kvferry.integrations.redis.keys import Keys
from kvferry.integrations.redis.url import parse, redact
from kvferry.integrations.sglang.local.ports import free_ports
from kvferry.integrations.sglang.plugin.telemetry.client import connect
from kvferry.integrations.sglang.plugin.telemetry.sink import BATCH, Sink
from kvferry.integrations.sglang.plugin.wire import LoadRecord, RequestRecord, WorkerRecord, decode


class Valkey:
    """A server on a Unix socket that loses its data when killed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.socket = folder, folder / "s"
        self.url = f"unix://{self.socket}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str) -> None:
        self.socket.unlink(missing_ok=True)
        self.process = launch(
            "--port", "0", "--unixsocket", str(self.socket), "--dir", str(self.folder), "--save", "", *more
        )
        until(lambda: answers(self.client()))

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def client(self) -> Any:
        return redis.Redis(unix_socket_path=str(self.socket), socket_timeout=5.0)

    def records(self) -> list[Any]:
        return records(self.client())


def launch(*arguments: str, binary: str = "") -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [binary or str(server_binary()), *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def until(condition: Callable[[], Any], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def answers(client: Any) -> bool:
    with contextlib.suppress(redis.RedisError, OSError):
        return bool(client.ping())
    return False


def records(client: Any) -> list[Any]:
    return [decode(fields[b"data"]) for _, fields in client.xrange(Keys().telemetry)]


def rids(found: list[Any]) -> list[str]:
    return [record.rid for record in found if isinstance(record, RequestRecord)]


@pytest.fixture
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    server = Valkey(tmp_path_factory.mktemp("v"))
    server.start()
    yield server
    if server.process is not None:
        server.process.kill()
        server.process.wait()


StartSink = Callable[..., Sink]


@pytest.fixture
def start_sink() -> Iterator[StartSink]:
    started: list[Sink] = []

    def start(url: str, **changed: Any) -> Sink:
        address = parse(url)
        settings: dict[str, Any] = {
            "capacity": 10000,
            "stream_records": 50000,
            "load_interval_s": 3600.0,
            "tell": lambda: WorkerRecord(worker="w"),
            "load": lambda: None,
        }
        sink = Sink(
            lambda: connect(address, timeout_s=0.5, name="test"), Keys(), redact(url), **settings | changed
        )
        started.append(sink)
        sink.start()
        return sink

    yield start
    for sink in started:
        sink.close()
        sink.join(10)
        assert not sink.is_alive()


def put(sink: Sink, *numbers: int) -> None:
    for number in numbers:
        sink.put(lambda number=number: RequestRecord(worker="w", role="decode", rid=str(number)))  # type: ignore[misc]


def test_records_arrive_in_order_behind_what_the_worker_is(valkey: Valkey, start_sink: StartSink) -> None:
    sink = start_sink(valkey.url, load=lambda: LoadRecord(worker="w", requests=3), load_interval_s=0.05)
    put(sink, *range(2 * BATCH + 7))
    until(lambda: len(rids(valkey.records())) == 2 * BATCH + 7)
    found = valkey.records()
    assert rids(found) == [str(n) for n in range(2 * BATCH + 7)]
    assert isinstance(found[0], WorkerRecord)
    assert valkey.client().get(Keys().told("w")) is not None
    assert valkey.client().ttl(Keys().told("w")) > 0
    until(lambda: sum(isinstance(record, LoadRecord) for record in valkey.records()) >= 3)
    assert (sink.dropped, sink.queued, sink.up) == (0, 0, True)


def test_the_stream_is_bounded(valkey: Valkey, start_sink: StartSink) -> None:
    sink = start_sink(valkey.url, stream_records=1000)
    for first in range(0, 5000, 500):
        put(sink, *range(first, first + 500))
    until(lambda: sink.sent >= 5001)
    assert valkey.client().xlen(Keys().telemetry) < 1500


def test_down_and_up_again(valkey: Valkey, start_sink: StartSink, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kvferry.plugin")
    sink = start_sink(valkey.url, capacity=100)
    put(sink, 0)
    until(lambda: rids(valkey.records()) == ["0"])
    valkey.kill()
    put(sink, 1)
    until(lambda: not sink.up)
    until(lambda: sink.queued == 1)
    put(sink, *range(2, 302))
    assert sink.dropped == 201  # 301 waited, there is room for 100
    time.sleep(1.0)  # tries again meanwhile
    assert (sink.dropped, sink.queued) == (201, 100)
    valkey.start()
    until(lambda: sink.up and sink.queued == 0)
    found = valkey.records()
    assert rids(found) == [str(n) for n in range(202, 302)]
    assert isinstance(found[0], WorkerRecord)  # told again: the store had lost it
    messages = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(messages) == 2, messages
    assert "lost" in messages[0]
    assert "201 records dropped" in messages[1]


def test_a_store_that_hangs_holds_nobody_up(valkey: Valkey, start_sink: StartSink) -> None:
    sink = start_sink(valkey.url, capacity=50)
    until(lambda: sink.sent == 1)
    assert valkey.process is not None
    valkey.process.send_signal(signal.SIGSTOP)
    try:
        put(sink, *range(5000))  # would never return if it waited for the store
        until(lambda: not sink.up)
    finally:
        valkey.process.send_signal(signal.SIGCONT)
    until(lambda: sink.up and sink.queued == 0)
    put(sink, 5000)
    until(lambda: "5000" in rids(valkey.records()))
    assert sink.dropped >= 5000 - 2 * 50 - BATCH
    # a batch whose answer was lost comes again: twice at worst, never less than once
    assert len(set(rids(valkey.records()))) + sink.dropped >= 5001


def test_a_store_that_refuses_is_a_store_that_is_away(
    valkey: Valkey, start_sink: StartSink, caplog: pytest.LogCaptureFixture
) -> None:
    valkey.client().set(Keys().telemetry, "no stream")
    sink = start_sink(valkey.url)
    put(sink, 1)
    until(lambda: "WRONGTYPE" in caplog.text)
    assert not sink.up
    valkey.client().delete(Keys().telemetry)
    until(lambda: rids(valkey.records()) == ["1"])
    assert sink.dropped == 0


def test_no_secret_is_logged(start_sink: StartSink, caplog: pytest.LogCaptureFixture) -> None:
    (port,) = free_ports(1)
    sink = start_sink(f"redis://ferry:s3cret@127.0.0.1:{port}/0")
    until(lambda: f"127.0.0.1:{port}" in caplog.text)
    assert not sink.up
    assert "s3cret" not in caplog.text


def test_a_record_that_cannot_be_built_costs_no_other(
    valkey: Valkey, start_sink: StartSink, caplog: pytest.LogCaptureFixture
) -> None:
    sink = start_sink(valkey.url)
    put(sink, 1)
    sink.put(lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    sink.put(lambda: LoadRecord(worker="w", load={"a": object()}))  # type: ignore[dict-item]
    put(sink, 2)
    until(lambda: rids(valkey.records()) == ["1", "2"])
    assert "could not be built" in caplog.text


def test_what_arrives_and_what_is_dropped_add_up(valkey: Valkey, start_sink: StartSink) -> None:
    sink = start_sink(valkey.url, capacity=20)
    for number in range(3000):
        put(sink, number)
    until(lambda: sink.queued == 0)
    until(lambda: len(rids(valkey.records())) + sink.dropped == 3000)
    got = [int(rid) for rid in rids(valkey.records())]
    assert got == sorted(got)


@contextlib.contextmanager
def serving(*arguments: str, binary: str = "") -> Iterator[None]:
    process = launch(*arguments, binary=binary)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_on_a_cluster(tmp_path: Path, start_sink: StartSink) -> None:
    port, bus_port = free_ports(2)
    with serving(
        "--port", str(port), "--cluster-enabled", "yes", "--cluster-port", str(bus_port), "--save", "",
        "--dir", str(tmp_path),
    ):  # fmt: skip
        client = redis.Redis(port=port)
        until(lambda: answers(client))
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)  # type: ignore[no-untyped-call]
        until(lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")  # type: ignore[no-untyped-call]
        sink = start_sink(f"redis+cluster://127.0.0.1:{port}")
        put(sink, 1)
        until(lambda: rids(records(client)) == ["1"])


def test_behind_a_sentinel(tmp_path: Path, start_sink: StartSink) -> None:
    port, sentinel_port = free_ports(2)
    conf = tmp_path / "sentinel.conf"
    conf.write_text(f"port {sentinel_port}\ndir {tmp_path}\nsentinel monitor kv 127.0.0.1 {port} 1\n")
    with (
        serving("--port", str(port), "--save", "", "--dir", str(tmp_path)),
        serving(str(conf), "--sentinel"),
    ):
        client = redis.Redis(port=port)
        until(lambda: answers(client) and answers(redis.Redis(port=sentinel_port)))
        sink = start_sink(f"redis+sentinel://127.0.0.1:{sentinel_port}/kv")
        put(sink, 1)
        until(lambda: rids(records(client)) == ["1"])


def test_over_tls(tmp_path: Path, start_sink: StartSink) -> None:
    binary = shutil.which("redis-server")  # the embedded Valkey is built without TLS
    if binary is None or shutil.which("openssl") is None:
        pytest.skip("needs redis-server and openssl")
    key, cert, (port,) = tmp_path / "key.pem", tmp_path / "cert.pem", free_ports(1)
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(cert),
         "-days", "1", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    with serving(
        "--port", "0", "--tls-port", str(port), "--tls-cert-file", str(cert), "--tls-key-file", str(key),
        "--tls-auth-clients", "no", "--save", "", "--dir", str(tmp_path), "--requirepass", "s3cret",
        binary=binary,
    ):  # fmt: skip
        client = redis.Redis("127.0.0.1", port, password="s3cret", ssl=True, ssl_ca_certs=str(cert))
        until(lambda: answers(client))
        sink = start_sink(f"rediss://:s3cret@127.0.0.1:{port}/0?ssl_ca_certs={cert}")
        put(sink, 1)
        until(lambda: rids(records(client)) == ["1"])

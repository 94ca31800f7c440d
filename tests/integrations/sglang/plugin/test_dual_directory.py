"""What a prefill worker's registry tells a decode worker, and how long a silence is taken for granted."""

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from kvferry.integrations.sglang.plugin.dual.directory import SILENCE_S, Directory, ask_transport
from kvferry.integrations.sglang.plugin.dual.names import ROUTE


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize("error", [OSError("gone"), TimeoutError(), ValueError("no JSON")])
def test_silence_is_asked_about_again_only_after_a_while(error: Exception) -> None:
    clock, asked = Clock(), []

    def ask(address: str) -> str:
        asked.append(address)
        if len(asked) == 1:
            raise error
        return "nixl"

    directory = Directory(ask, clock)
    assert [directory.transport_of("a") for _ in range(9)] == [None] * 9
    assert asked == ["a"]
    clock.now_s += SILENCE_S + 0.1
    assert [directory.transport_of("a") for _ in range(9)] == ["nixl"] * 9
    assert asked == ["a", "a"]
    directory.forget("a")
    directory.forget("never known")
    assert directory.transport_of("a") == "nixl"
    assert len(asked) == 3


def test_another_error_is_no_silence() -> None:
    def ask(address: str) -> str:
        raise KeyError(address)

    with pytest.raises(KeyError):
        Directory(ask).transport_of("a")


@pytest.fixture
def registry() -> Iterator[Any]:
    class Handler(BaseHTTPRequestHandler):
        status, body = 200, b'{"transport": "nixl"}'

        def do_GET(self) -> None:
            status = Handler.status if self.path == ROUTE else 500
            self.send_response(status)
            self.end_headers()
            self.wfile.write(Handler.body)

        def log_message(self, *_: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}", Handler
    server.shutdown()
    server.server_close()


def test_a_registry_tells_its_transport_and_one_that_cannot_is_of_the_usual_one(registry: Any) -> None:
    address, handler = registry
    assert ask_transport(address) == "nixl"
    handler.status = 404
    assert ask_transport(address) == "mooncake"


@pytest.mark.parametrize(
    ("status", "body"),
    [(500, b""), (200, b"nixl"), (200, b'{"transport": "smoke"}'), (200, b"[]"), (200, b"{}")],
)
def test_an_odd_answer_is_an_error(registry: Any, status: int, body: bytes) -> None:
    address, handler = registry
    handler.status, handler.body = status, body
    with pytest.raises(ValueError, match=r"."):
        ask_transport(address)
    assert Directory().transport_of(address) is None


def test_nobody_there_and_somebody_who_says_nothing() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(OSError, match=r"."):
            ask_transport(address)
        mute.listen()
        with pytest.raises(TimeoutError):
            ask_transport(address, timeout_s=0.1)

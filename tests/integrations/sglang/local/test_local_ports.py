"""Ports for workers: free, different, and out of the kernel's own range."""

import socket

import pytest

from kvferry.integrations.sglang.local import ports


def test_ports_are_different_free_and_below_the_ephemeral_range() -> None:
    found = ports.free_ports(20)
    assert len(set(found)) == 20
    assert max(found) < 32768
    assert len({port // 2 for port in found}) == 20, "each has the one above it to itself"
    for port in found:
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # others' closed connections linger
            server.bind(("127.0.0.1", port))


def test_a_port_in_use_or_taken_is_not_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    first = ports.free_ports(1)[0]
    monkeypatch.setattr(ports, "FIRST", first)
    monkeypatch.setattr(ports, "LAST", first)
    assert ports.free_ports(1) == [first]
    with pytest.raises(OSError, match="0 of 1"):
        ports.free_ports(1, taken=frozenset({first}))
    for port in (first, first + 1):
        with socket.socket() as server:
            server.bind(("127.0.0.1", port))
            server.listen()
            with pytest.raises(OSError, match="0 of 1"):
                ports.free_ports(1)

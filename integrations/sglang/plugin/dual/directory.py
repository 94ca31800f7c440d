"""Which transport a prefill worker serves at an address: asked of it once, and kept."""

import http.client
import json
import logging
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from kvferry.integrations.sglang.plugin.dual.names import PRIMARY, ROUTE, TRANSPORTS

log = logging.getLogger("kvferry.plugin")

ASK_TIMEOUT_S = 1.0
# A worker that does not answer holds the scheduler up for ASK_TIMEOUT_S at most this often.
SILENCE_S = 5.0


class Directory:
    """`ask(address)` gives the transport served there, or raises OSError when nobody answers."""

    def __init__(
        self, ask: Callable[[str], str] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask or ask_transport
        self._clock = clock
        self._known: dict[str, str] = {}
        self._silent_until_s: dict[str, float] = {}
        self._lock = threading.Lock()  # the heartbeat threads forget what the scheduler learns

    def transport_of(self, address: str) -> str | None:
        """None: it could not be asked, now or in the last SILENCE_S."""
        with self._lock:
            known = self._known.get(address)
            silent = self._silent_until_s.get(address, 0.0) > self._clock()
        if known is not None or silent:
            return known
        try:
            transport = self._ask(address)
        except (OSError, http.client.HTTPException, ValueError) as error:
            log.warning("%s does not tell its transport: %s", address, error or type(error).__name__)
            with self._lock:
                self._silent_until_s[address] = self._clock() + SILENCE_S
            return None
        log.info("%s serves %s", address, transport)
        with self._lock:
            self._known[address] = transport
            self._silent_until_s.pop(address, None)
        return transport

    def forget(self, address: str) -> None:
        """Its worker is gone: another one may come to serve there."""
        with self._lock:
            self._known.pop(address, None)
            self._silent_until_s.pop(address, None)


def ask_transport(address: str, timeout_s: float = ASK_TIMEOUT_S) -> str:
    """A registry without this plugin answers 404, and is taken to be of the transport this worker started
    with. Raises OSError, HTTPException or ValueError."""
    told = ask(address, timeout_s)
    transport = PRIMARY if told is None else str(told.get("transport"))
    if transport not in TRANSPORTS:
        raise ValueError(f"unknown transport {transport!r}")
    return transport


def ask(address: str, timeout_s: float) -> dict[str, Any] | None:
    """What a registry says of itself; None when it has no such route."""
    parts = urlsplit(f"//{address}")
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request("GET", ROUTE)
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if answer.status == 404:
        return None
    if answer.status != 200:
        raise ValueError(f"answered {answer.status}")
    told = json.loads(body)
    if not isinstance(told, dict):
        raise ValueError("answered no JSON object")
    return told

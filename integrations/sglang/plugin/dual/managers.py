"""A KV manager for each transport, over the same buffers, and one face for both."""

import importlib
import logging
from collections import ChainMap
from collections.abc import Callable
from typing import Any

from kvferry.integrations.sglang.plugin.dual.directory import Directory
from kvferry.integrations.sglang.plugin.dual.names import PRIMARY, SECOND

log = logging.getLogger("kvferry.plugin")

DISAGGREGATION = "sglang.srt.disaggregation"
NIXL_TAG = b"NixlMsgGuard"  # SGLang's first frame of every control message over NIXL, and of none else


class Managers:
    """What the scheduler's queues hold for their one KV manager. Each sender and receiver has the true
    manager of its transport; whatever else SGLang asks is answered by the one it was started with."""

    def __init__(self, primary: Any, second: Any, directory: Directory) -> None:
        self.by_transport = {PRIMARY: primary, SECOND: second}
        self.primary, self.second = primary, second
        self.directory = directory
        self.supports_role_switch = False
        if hasattr(primary, "prefill_info_table"):
            # only read through this; the managers write their own
            self.prefill_info_table: ChainMap[str, Any] = ChainMap(
                primary.prefill_info_table, second.prefill_info_table
            )
        primary.peer, second.peer = second, primary

    def __getattr__(self, name: str) -> Any:
        if name == "primary":
            raise AttributeError(name)  # not built yet
        return getattr(self.primary, name)

    def at(self, address: str) -> Any:
        """The manager of the transport that is served at an address; None when nobody knows."""
        for manager in (self.primary, self.second):
            if address in manager.prefill_info_table:
                return manager
        transport = self.directory.transport_of(address)
        return None if transport is None else self.by_transport[transport]

    def try_ensure_parallel_info(self, bootstrap_addr: str) -> bool:
        manager = self.at(bootstrap_addr)
        return manager is not None and bool(manager.try_ensure_parallel_info(bootstrap_addr))

    def should_verify_kv_checksum(self, bootstrap_addr: str) -> bool:
        return bool((self.at(bootstrap_addr) or self.primary).should_verify_kv_checksum(bootstrap_addr))

    def submit_prefill_recompute(self, receiver: Any, payload: Any) -> Any:
        return receiver.kv_mgr.submit_prefill_recompute(receiver, payload)

    def register_buffer_to_engine(self) -> None:
        self._each("register_buffer_to_engine")

    def deregister_buffer_to_engine(self) -> None:
        self._each("deregister_buffer_to_engine")

    def close(self, why: str) -> None:
        """Moves over the second transport fail from here on, each with this reason."""
        self.second.closed = why

    def _each(self, name: str) -> None:
        for manager in self.by_transport.values():
            if hasattr(manager, name):
                getattr(manager, name)()


def manager_class(transport: str, directory: Directory, offset: int = 0) -> Callable[..., Any]:
    """SGLang's manager of a transport, registering `offset` ports higher.

    Its control thread outlives a message of the other transport, such as a decode worker without this
    plugin sends to the wrong port: SGLang's own would parse it, and die of it.
    """
    name = {PRIMARY: "MooncakeKVManager", SECOND: "NixlKVManager"}[transport]
    base: Any = getattr(importlib.import_module(f"{DISAGGREGATION}.{transport}.conn"), name)

    class Manager(base):  # type: ignore[misc]
        peer: Any = None
        closed = ""

        def _sync_bootstrap_port_across_nodes(self, local_port: int) -> int:
            return int(super()._sync_bootstrap_port_across_nodes(local_port)) + offset

        def _handle_node_failure(self, failed_bootstrap_addr: str) -> None:
            directory.forget(failed_bootstrap_addr)
            super()._handle_node_failure(failed_bootstrap_addr)

        def _handle_abort_notification(self, msg: list[bytes]) -> bool:
            # the last thing that both control threads call before they parse
            if super()._handle_abort_notification(msg):
                return True
            foreign = (msg[0] == NIXL_TAG) != (transport == SECOND)
            if not foreign and not self.closed:
                return False
            why = self.closed or f"this port of the prefill worker serves {transport} alone"
            try:
                _refuse(self, self.peer if foreign else self, msg, why)
            except (ValueError, IndexError, UnicodeDecodeError) as error:
                log.warning("dropped a control message that cannot be read: %s", error)
            return True

    Manager.__name__ = Manager.__qualname__ = name
    return Manager


def _refuse(manager: Any, speaker: Any, msg: list[bytes], why: str) -> None:
    """End the request that a control message is about, on both sides; `speaker` knows the sender's format."""
    room, host, port = (frame.decode("ascii") for frame in msg[msg[0] == NIXL_TAG :][:3])
    if room == "None":
        return  # a decode worker introduces itself: its request comes next
    log.warning("refused room %s of %s:%s: %s", room, host, port, why)
    status: Any = importlib.import_module(f"{DISAGGREGATION}.base.conn").KVPoll
    if manager.request_status.get(int(room), status.Success) != status.Success:
        manager.record_failure(int(room), why)
        manager.update_status(int(room), status.Failed)
    if speaker is not None:
        speaker.send_kv_status_message(
            targets=[(host, int(port))], bootstrap_room=int(room), status=status.Failed, failure_reason=why
        )

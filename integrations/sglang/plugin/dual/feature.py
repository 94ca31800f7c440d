"""DualTransport: Mooncake or NIXL for each request, on one pair of workers."""

import importlib
import importlib.util
import logging
from collections.abc import Callable, Sequence
from typing import Any

from kvferry.integrations.sglang.plugin.dual.directory import Directory, ask
from kvferry.integrations.sglang.plugin.dual.managers import DISAGGREGATION, Managers, manager_class
from kvferry.integrations.sglang.plugin.dual.names import PRIMARY, SECOND
from kvferry.integrations.sglang.plugin.dual.refusal import arguments_refuse, environment_refuses
from kvferry.integrations.sglang.plugin.dual.registry import registry_class
from kvferry.integrations.sglang.plugin.feature import Feature, Hook
from kvferry.integrations.sglang.plugin.settings import WorkerSettings

log = logging.getLogger("kvferry.plugin")

OFFER_TIMEOUT_S = 5.0
_CLASSES = {PRIMARY: "Mooncake", SECOND: "Nixl"}


class DualTransport(Feature):
    """A request's bootstrap port chooses: the worker's own is Mooncake, `port_offset` higher is NIXL.

    SGLang asks `get_kv_class` for what moves KV, while it builds its scheduler and then for every request.
    `refused` is decided there, at the latest when the KV manager is built: from then on it is stock SGLang,
    or both transports. A second transport that fails later is closed, and its requests fail; moves over the
    first go on either way.
    """

    name = "dual_transport"
    relies_on = (
        f"{DISAGGREGATION}.common.conn.CommonKVManager.__init__",
        f"{DISAGGREGATION}.common.conn.CommonKVManager._sync_bootstrap_port_across_nodes",
        f"{DISAGGREGATION}.common.conn.CommonKVManager.register_to_bootstrap",
        f"{DISAGGREGATION}.common.conn.CommonKVManager.try_ensure_parallel_info",
        f"{DISAGGREGATION}.common.conn.CommonKVManager.send_kv_status_message",
        f"{DISAGGREGATION}.common.conn.CommonKVManager.submit_prefill_recompute",
        f"{DISAGGREGATION}.common.conn.CommonKVManager._handle_node_failure",
        f"{DISAGGREGATION}.common.conn.CommonKVManager._start_heartbeat_checker_thread",
        f"{DISAGGREGATION}.common.conn.CommonKVSender.__init__",
        f"{DISAGGREGATION}.common.conn.CommonKVReceiver.__init__",
        f"{DISAGGREGATION}.common.conn.CommonKVReceiver.init",
        f"{DISAGGREGATION}.common.conn.CommonKVBootstrapServer.__init__",
        f"{DISAGGREGATION}.common.conn.CommonKVBootstrapServer._setup_routes",
        f"{DISAGGREGATION}.common.conn.CommonKVBootstrapServer.close",
        f"{DISAGGREGATION}.mooncake.conn.MooncakeKVManager.__init__",
        f"{DISAGGREGATION}.mooncake.conn.MooncakeKVManager._handle_abort_notification",
        f"{DISAGGREGATION}.mooncake.conn.MooncakeKVManager.start_prefill_thread",
        f"{DISAGGREGATION}.nixl.conn.NixlKVManager.__init__",
        f"{DISAGGREGATION}.nixl.conn.NixlKVManager._handle_abort_notification",
        f"{DISAGGREGATION}.nixl.conn.NixlKVManager._start_bootstrap_thread",
        f"{DISAGGREGATION}.prefill.PrefillBootstrapQueue._init_kv_manager",
        f"{DISAGGREGATION}.decode.DecodePreallocQueue._init_kv_manager",
        f"{DISAGGREGATION}.decode.DecodePreallocQueue._create_receiver_and_enqueue",
        f"{DISAGGREGATION}.decode.DecodePreallocQueue._ensure_prefill_info",
        f"{DISAGGREGATION}.decode.DecodePreallocQueue._resolve_prefill_dp_rank",
        "sglang.srt.managers.disagg_service.start_disagg_service",
    )

    def __init__(self, settings: WorkerSettings) -> None:
        super().__init__(settings)
        self.offset = settings.dual_transport.port_offset
        self.directory = Directory()
        self.refused: str | None = None
        self.managers: Managers | None = None
        self.ports: dict[str, int | None] = {}
        self._made: dict[str, Callable[..., Any]] = {}

    @property
    def enabled(self) -> bool:
        return self.settings.dual_transport.enabled

    def hooks(self) -> Sequence[Hook]:
        return (
            Hook(f"{DISAGGREGATION}.utils.get_kv_class", "after", self._kv_class),
            Hook(f"{DISAGGREGATION}.prefill.PrefillBootstrapQueue.create_sender", "around", self._sender_of),
        )

    def missing(self) -> str | None:
        for module in ("mooncake", "nixl"):
            if importlib.util.find_spec(module) is None:
                return f"{module} is not installed"
        return environment_refuses()

    def start(self, scheduler: Any) -> str | None:
        """The KV managers are there by now, or were refused."""
        if self.managers is None and self.refused is None:
            return "this worker moves no KV"
        if self.refused is None:
            scheduler.kvferry_transports = dict(self.ports)  # telemetry tells them
        return self.refused

    def failed(self, why: str) -> None:
        self.refused = self.refused or why
        if self.managers is not None:
            self.managers.close(f"{SECOND} was turned off: {why}")

    def describe(self) -> dict[str, Any]:
        return {"transports": dict(self.ports)}

    def _kv_class(self, result: Any, transfer_backend: Any, class_type: Any) -> Any:
        """What stands in for SGLang's class: `None` leaves it as it is."""
        kind = class_type.value
        if kind in ("manager", "bootstrap_server") and self.refused is None:
            self.refused = arguments_refuse(_arguments())
        if self.refused is not None or transfer_backend.value != PRIMARY:
            return None
        if kind in ("sender", "receiver") and self.managers is None:
            return None  # the scheduler got SGLang's own manager: the hook failed when it was asked for
        if kind not in self._made:
            self._made |= self._make(kind)
        return self._made.get(kind)

    def _make(self, kind: str) -> dict[str, Callable[..., Any]]:
        if kind == "bootstrap_server":
            return {kind: registry_class(self.offset)}
        return {"manager": self._manager, "sender": self._sender, "receiver": self._receiver}

    def _manager(self, args: Any, mode: Any, server_args: Any, is_mla_backend: bool = False) -> Any:
        """Both managers behind one face, or the first alone when the second cannot be had."""
        primary = manager_class(PRIMARY, self.directory)(args, mode, server_args, is_mla_backend)
        prefill = mode.value == "prefill"
        try:
            if prefill:
                self.refused = self._not_offered(primary.bootstrap_host, primary.bootstrap_port)
            if self.refused is None:
                build = manager_class(SECOND, self.directory, self.offset)
                second = build(args, mode, server_args, is_mla_backend)
                self.managers = Managers(primary, second, self.directory)
                self.ports = {
                    PRIMARY: primary.bootstrap_port if prefill else None,
                    SECOND: second.bootstrap_port if prefill else None,
                }
        except Exception as error:
            log.exception("%s could not start, %s serves alone", SECOND, PRIMARY)
            self.refused = f"{SECOND} could not start: {type(error).__name__}: {error}"
        return self.managers or primary

    def _not_offered(self, host: str, port: int) -> str | None:
        """Why this worker's main process has no registry for the second transport."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        told = ask(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", OFFER_TIMEOUT_S)
        if told is None:
            return "off in this worker's main process"
        return None if told.get(SECOND) == port + self.offset else str(told.get("why") or "another offset")

    def _sender_of(
        self, original: Callable[..., Any], queue: Any, req: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """SGLang gives every sender the worker's own port; the request's says which transport it is for."""
        own = queue.bootstrap_port
        if req.bootstrap_port == self.ports.get(SECOND):
            queue.bootstrap_port = req.bootstrap_port
        try:
            return original(queue, req, *args, **kwargs)
        finally:
            queue.bootstrap_port = own

    def _sender(self, mgr: Any, bootstrap_addr: str, bootstrap_room: int, **more: Any) -> Any:
        second = int(bootstrap_addr.rsplit(":", 1)[1]) == self.ports[SECOND]
        return self._of(SECOND if second else PRIMARY, "Sender", mgr, bootstrap_addr, bootstrap_room, **more)

    def _receiver(self, mgr: Any, bootstrap_addr: str, bootstrap_room: int | None = None) -> Any:
        manager = mgr.at(bootstrap_addr)
        transport = SECOND if manager is mgr.second else PRIMARY
        made = self._of(transport, "Receiver", mgr, bootstrap_addr, bootstrap_room)
        if (
            manager is None
        ):  # a guess would wait for its timeout; this fails at once, and can be run elsewhere
            status = _conn("base").KVPoll
            mgr.primary.record_failure(bootstrap_room, f"{bootstrap_addr} does not tell its transport")
            mgr.primary.update_status(bootstrap_room, status.Failed)
            made.conclude_state = status.Failed
        return made

    def _of(self, transport: str, kind: str, mgr: Any, address: str, room: int | None, **more: Any) -> Any:
        build = getattr(_conn(transport), f"{_CLASSES[transport]}KV{kind}")
        return build(mgr=mgr.by_transport[transport], bootstrap_addr=address, bootstrap_room=room, **more)


def _conn(package: str) -> Any:
    return importlib.import_module(f"{DISAGGREGATION}.{package}.conn")


def _arguments() -> Any:
    return importlib.import_module("sglang.srt.runtime_context").get_server_args()

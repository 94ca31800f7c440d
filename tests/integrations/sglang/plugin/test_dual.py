"""Two transports behind one face, over stand-ins for SGLang's own classes."""

import json
import socket
import sys
from collections.abc import Callable
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from kvferry.integrations.sglang.plugin.dual import feature as module
from kvferry.integrations.sglang.plugin.dual.feature import DualTransport
from kvferry.integrations.sglang.plugin.dual.managers import NIXL_TAG
from kvferry.integrations.sglang.plugin.dual.refusal import arguments_refuse, environment_refuses
from kvferry.integrations.sglang.plugin.guard import Guard
from kvferry.integrations.sglang.plugin.settings import WorkerSettings

MOONCAKE, NIXL = SimpleNamespace(value="mooncake"), SimpleNamespace(value="nixl")
PREFILL, DECODE = SimpleNamespace(value="prefill"), SimpleNamespace(value="decode")
PORT = 8998


class KVPoll(Enum):
    Failed = 0
    Bootstrapping = 1
    Success = 4


class Manager:
    """As much of SGLang's CommonKVManager as is used."""

    broken = ""

    def __init__(self, args: Any, mode: Any, server_args: Any, is_mla_backend: bool = False) -> None:
        if self.broken:
            raise RuntimeError(self.broken)
        self.kv_args, self.mode = args, mode
        self.bootstrap_host = "127.0.0.1"
        self.bootstrap_port = PORT
        self.request_status: dict[int, KVPoll] = {}
        self.failures: dict[int, str] = {}
        self.sent: list[Any] = []
        self.gone: list[str] = []
        if mode is PREFILL:
            self.bootstrap_port = self._sync_bootstrap_port_across_nodes(PORT)
        else:
            self.prefill_info_table: dict[str, Any] = {}

    def _sync_bootstrap_port_across_nodes(self, local_port: int) -> int:
        return local_port

    def _handle_abort_notification(self, msg: list[bytes]) -> bool:
        return msg[0] == b"ABORT"

    def _handle_node_failure(self, failed_bootstrap_addr: str) -> None:
        self.gone.append(failed_bootstrap_addr)

    def try_ensure_parallel_info(self, address: str) -> bool:
        self.prefill_info_table[address] = self
        return True

    def record_failure(self, room: int, why: str) -> None:
        self.failures[room] = why

    def update_status(self, room: int, status: KVPoll) -> None:
        self.request_status[room] = status

    def send_kv_status_message(self, **told: Any) -> None:
        self.sent.append(told)


class Half:
    """A sender or receiver."""

    conclude_state = None

    def __init__(self, mgr: Any, bootstrap_addr: str, bootstrap_room: int | None = None, **more: Any) -> None:
        self.mgr, self.addr, self.more = mgr, bootstrap_addr, more


def arguments(**more: Any) -> Any:
    return SimpleNamespace(disaggregation_transfer_backend="mooncake", pp_size=1, nnodes=1, **more)


class Stand:
    """A feature over stand-ins. `told` answers for the main process, `transports` for prefill workers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        conns: dict[str, Any] = {"base": SimpleNamespace(KVPoll=KVPoll)}
        for package, prefix in (("mooncake", "Mooncake"), ("nixl", "Nixl")):
            names = {
                f"{prefix}KV{kind}": type(f"{prefix}{kind}", (Half,), {}) for kind in ("Sender", "Receiver")
            }
            names[f"{prefix}KVManager"] = type(f"{prefix}Manager", (Manager,), {})
            conns[package] = SimpleNamespace(**names)
        for package, stand_in in conns.items():
            monkeypatch.setitem(sys.modules, f"sglang.srt.disaggregation.{package}.conn", stand_in)
        self.conns = conns
        self.arguments = arguments()
        self.told: Any = {"transport": "mooncake", "nixl": PORT + 1}
        self.transports: dict[str, str] = {}
        self.asked: list[str] = []
        monkeypatch.setattr(module, "_arguments", lambda: self.arguments)
        monkeypatch.setattr(module, "ask", lambda address, timeout_s: self.told)
        self.feature = DualTransport(WorkerSettings.load({"KVFERRY_DUAL_TRANSPORT": "1"}))
        self.feature.directory._ask = self._ask

    def _ask(self, address: str) -> str:
        self.asked.append(address)
        if address not in self.transports:
            raise ConnectionRefusedError(address)
        return self.transports[address]

    def get(self, kind: str, backend: Any = MOONCAKE) -> Any:
        return self.feature._kv_class("stock", backend, SimpleNamespace(value=kind))

    def managers(self, mode: Any) -> Any:
        return self.get("manager")("args", mode, "server args", False)


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Stand:
    return Stand(monkeypatch)


def test_a_prefill_workers_port_chooses_the_sender(stand: Stand) -> None:
    both = stand.managers(PREFILL)
    assert stand.feature.describe() == {"transports": {"mooncake": PORT, "nixl": PORT + 1}}
    assert both.second.bootstrap_port == PORT + 1
    assert both.kv_args == "args", "whatever is not ours is the first one's"
    for port, manager, kind in (
        (PORT, both.primary, "MooncakeSender"),
        (PORT + 1, both.second, "NixlSender"),
    ):
        sender = stand.get("sender")(
            mgr=both, bootstrap_addr=f"h:{port}", bootstrap_room=7, req_has_disagg_prefill_dp_rank=False
        )
        assert (type(sender).__name__, sender.mgr) == (kind, manager)
    assert stand.feature.start(SimpleNamespace()) is None


@pytest.mark.parametrize(
    ("asked_for", "port"), [(PORT, PORT), (PORT + 1, PORT + 1), (PORT + 5, PORT), (None, PORT)]
)
@pytest.mark.parametrize("fails", [False, True])
def test_the_requests_port_reaches_its_sender_and_no_other(
    stand: Stand, asked_for: int | None, port: int, fails: bool
) -> None:
    stand.managers(PREFILL)
    queue, seen = SimpleNamespace(bootstrap_port=PORT), []

    def create_sender(queue: Any, req: Any, heads: int) -> bool:
        seen.append(queue.bootstrap_port)
        if fails:
            raise KeyError(heads)
        return True

    req = SimpleNamespace(bootstrap_port=asked_for)
    if fails:
        with pytest.raises(KeyError):
            stand.feature._sender_of(create_sender, queue, req, 8)
    else:
        assert stand.feature._sender_of(create_sender, queue, req, 8) is True
    assert seen == [port]
    assert queue.bootstrap_port == PORT


def test_a_decode_worker_asks_each_address_once_what_it_serves(stand: Stand) -> None:
    both = stand.managers(DECODE)
    assert stand.feature.describe() == {"transports": {"mooncake": None, "nixl": None}}
    stand.transports = {"p:1": "mooncake", "p:2": "nixl"}
    for _ in range(3):
        for address, kind, manager in (
            ("p:1", "MooncakeReceiver", both.primary),
            ("p:2", "NixlReceiver", both.second),
        ):
            made = stand.get("receiver")(mgr=both, bootstrap_addr=address, bootstrap_room=7)
            assert (type(made).__name__, made.mgr) == (kind, manager)
    assert stand.asked == ["p:1", "p:2"]
    assert both.try_ensure_parallel_info("p:2")
    assert both.prefill_info_table["p:2"] is both.second
    both.second._handle_node_failure("p:2")
    both.second.prefill_info_table.clear()
    assert both.second.gone == ["p:2"]
    stand.transports["p:2"] = "mooncake"
    assert both.at("p:2") is both.primary, "another worker serves there now"


def test_a_request_to_an_address_that_does_not_tell_fails_at_once_and_holds_nobody_up(stand: Stand) -> None:
    both = stand.managers(DECODE)
    for room in range(3):
        made = stand.get("receiver")(mgr=both, bootstrap_addr="p:9", bootstrap_room=room)
        assert made.conclude_state is KVPoll.Failed
        assert both.primary.request_status[room] is KVPoll.Failed
        assert "p:9 does not tell" in both.primary.failures[room]
    assert not both.try_ensure_parallel_info("p:9")
    assert stand.asked == ["p:9"], "asked once, not for each request"


def frames(room: str, nixl: bool) -> list[bytes]:
    return [*([NIXL_TAG] if nixl else []), room.encode(), b"10.0.0.2", b"4000", b"session"]


@pytest.mark.parametrize("at", ["primary", "second"])
def test_a_message_of_the_other_transport_ends_its_request_and_not_the_thread(stand: Stand, at: str) -> None:
    both = stand.managers(PREFILL)
    manager = getattr(both, at)
    nixl = at == "second"
    assert manager._handle_abort_notification([b"ABORT"])
    assert not manager._handle_abort_notification(frames("5", nixl)), "its own is SGLang's to read"
    assert manager._handle_abort_notification(frames("None", not nixl))
    manager.request_status[5] = KVPoll.Bootstrapping
    manager.request_status[6] = KVPoll.Success
    for room in (5, 6):
        assert manager._handle_abort_notification(frames(str(room), not nixl))
    assert manager.request_status == {5: KVPoll.Failed, 6: KVPoll.Success}
    assert [told["bootstrap_room"] for told in manager.peer.sent] == [5, 6]
    assert manager.peer.sent[0]["targets"] == [("10.0.0.2", 4000)]
    assert not manager.sent, "in the other one's format"


@pytest.mark.parametrize(
    "rest", [[], [b"\xff"], [b"1"], [b"1", b"h"], [b"1", b"h", b"port"], [b"x", b"h", b"1"]]
)
def test_a_message_that_nobody_can_read_is_dropped(stand: Stand, rest: list[bytes]) -> None:
    both = stand.managers(PREFILL)
    assert both.primary._handle_abort_notification([NIXL_TAG, *rest])
    assert not both.second.sent


def test_without_the_second_transport_the_worker_is_a_stock_one(stand: Stand) -> None:
    stand.conns["nixl"].NixlKVManager.broken = "no UCX"
    alone = stand.managers(PREFILL)
    assert isinstance(alone, stand.conns["mooncake"].MooncakeKVManager)
    assert stand.feature.start(SimpleNamespace()) == "nixl could not start: RuntimeError: no UCX"
    assert [stand.get(kind) for kind in ("manager", "sender", "receiver", "bootstrap_server")] == [None] * 4
    req, queue = SimpleNamespace(bootstrap_port=PORT + 1), SimpleNamespace(bootstrap_port=PORT)
    assert stand.feature._sender_of(lambda queue, req: queue.bootstrap_port, queue, req) == PORT


def test_a_worker_that_got_sglangs_own_manager_gets_its_senders_too(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_arguments", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        stand.get("manager")  # the guard logs it
    assert stand.get("sender") is None
    assert stand.get("receiver") is None


def test_what_the_first_transport_raises_is_sglangs_to_handle(stand: Stand) -> None:
    stand.conns["mooncake"].MooncakeKVManager.broken = "no RDMA"
    with pytest.raises(RuntimeError, match="no RDMA"):
        stand.managers(DECODE)


TOLD = {
    "off in this worker's main process": None,
    "port 8999 cannot be had": {"transport": "mooncake", "nixl": None, "why": "port 8999 cannot be had"},
    "another offset": {"transport": "mooncake", "nixl": PORT + 2},
}


@pytest.mark.parametrize("why", TOLD)
def test_rows_go_to_no_registry_that_is_not_its_own(stand: Stand, why: str) -> None:
    stand.told = TOLD[why]
    stand.managers(PREFILL)
    assert stand.feature.start(SimpleNamespace()) == why
    assert stand.feature.managers is None


def test_turned_off_while_serving_the_second_transport_fails_with_its_reason(stand: Stand) -> None:
    both = stand.managers(PREFILL)
    guard = Guard(stand.feature)
    guard.turn_off("3 hooks failed")
    assert guard.status() == {"on": False, "why": "3 hooks failed"}
    assert stand.get("sender") is None
    both.second.request_status[5] = KVPoll.Bootstrapping
    assert both.second._handle_abort_notification(frames("5", nixl=True))
    assert both.second.failures[5] == "nixl was turned off: 3 hooks failed"
    assert both.second.sent[0]["failure_reason"] == both.second.failures[5]
    assert not both.primary._handle_abort_notification(frames("6", nixl=False)), "the first goes on"


REFUSED: dict[str, Callable[[], Any]] = {
    "role-switch": lambda: arguments(enable_pd_role_switch=True),
    "hisparse": lambda: arguments(enable_hisparse=True),
    "started for nixl": lambda: SimpleNamespace(disaggregation_transfer_backend="nixl"),
    "pipeline": lambda: SimpleNamespace(disaggregation_transfer_backend="mooncake", pp_size=2),
    "several nodes": lambda: SimpleNamespace(disaggregation_transfer_backend="mooncake", nnodes=2),
    "late decode": lambda: arguments(disaggregation_decode_allocation_policy="prefill_complete"),
    "host memory": lambda: arguments(disaggregation_decode_host_receive_threshold=0.5),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_worker_that_cannot_have_two_is_refused_before_anything_is_replaced(stand: Stand, why: str) -> None:
    stand.arguments = REFUSED[why]()
    assert why in str(arguments_refuse(stand.arguments))
    for kind in ("kvargs", "bootstrap_server", "manager", "sender", "receiver"):
        assert stand.get(kind) is None
    assert why in str(stand.feature.start(SimpleNamespace()))


def test_what_is_refused_by_the_environment(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    assert arguments_refuse(arguments(disaggregation_decode_host_receive_threshold=1.0)) is None
    assert environment_refuses() is None
    monkeypatch.setenv("SGLANG_DISAGG_STAGING_BUFFER", "true")
    assert "staging" in str(environment_refuses())
    monkeypatch.setenv("SGLANG_DISAGG_STAGING_BUFFER", "0")
    monkeypatch.setenv("SGLANG_RUST_SERVER", "1")
    assert "SGLANG_RUST_SERVER" in str(environment_refuses())


class Base:
    """As much of SGLang's registry as is used."""

    broken = False

    def __init__(self, host: str, port: int) -> None:
        if self.broken:
            raise RuntimeError("no loop")
        self.port, self.routes, self.closed = port, [], False
        self.thread = SimpleNamespace(is_alive=lambda: not self.closed)
        self.app = SimpleNamespace(router=SimpleNamespace(add_get=lambda *route: self.routes.append(route)))
        self._setup_routes()

    def _setup_routes(self) -> None: ...

    def close(self) -> None:
        self.closed = True


async def says(registry: Any) -> Any:
    ((path, handler),) = registry.routes
    assert path == "/kv_transport"
    return json.loads((await handler(None)).body)


async def test_each_registry_tells_its_transport_and_the_first_whether_there_is_a_second(
    stand: Stand,
) -> None:
    class Second(Base): ...

    stand.conns["mooncake"].MooncakeKVBootstrapServer = Base
    stand.conns["nixl"].NixlKVBootstrapServer = Second
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1] - 1
    registry = stand.get("bootstrap_server")("127.0.0.1", port)
    assert await says(registry) == {"transport": "mooncake", "nixl": port + 1}
    assert await says(registry.second) == {"transport": "nixl"}
    assert registry.second.port == port + 1
    registry.close()
    assert registry.closed
    assert registry.second.closed
    assert (await says(registry))["nixl"] is None

    with socket.socket() as neighbour:
        neighbour.bind(("127.0.0.1", port + 1))
        neighbour.listen()
        alone = stand.get("bootstrap_server")("127.0.0.1", port)
    told = await says(alone)
    assert told["nixl"] is None
    assert f"port {port + 1} cannot be had" in told["why"]
    alone.close()

    Second.broken = True
    assert "no loop" in (await says(stand.get("bootstrap_server")("127.0.0.1", port)))["why"]


def test_a_fake_transfer_and_a_colocated_worker_are_left_alone(stand: Stand) -> None:
    assert stand.get("sender", SimpleNamespace(value="fake")) is None
    assert stand.feature.start(SimpleNamespace()) == "this worker moves no KV"

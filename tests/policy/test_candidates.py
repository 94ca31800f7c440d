"""Which plans a set of workers allows."""

from dataclasses import replace
from typing import Any

from kvferry.policy.candidates import Candidates
from kvferry.policy.decision import Reason
from kvferry.policy.layout import KVLayout
from kvferry.policy.link import Link
from kvferry.policy.worker import Role, Worker

BOTH = ("mooncake", "nixl")


def prefill(**changes: Any) -> Worker:
    return worker(Role.PREFILL, bootstrap_ports={"mooncake": 1, "nixl": 2}, **changes)


def worker(role: Role, **changes: Any) -> Worker:
    given = {"transports": BOTH, **changes}
    return Worker(
        id=role.value, url="", role=role, model="m", shape=shape(), bootstrap_port=1, host=role.value, **given
    )


def shape() -> Any:
    from kvferry.policy.kvshape import KVShape

    return KVShape(layers=4, kv_heads=4, head_dim=64, name="m")


def link(src: Worker, dst: Worker, transport: str) -> Link:
    alpha_s = {"mooncake": 0.25, "nixl": 0.5}[transport]
    return Link(src.host, dst.host, transport, "c", alpha_s, 1e9, 1e9, 0.0)


def keys(*workers: Worker) -> tuple[tuple[str, ...], dict[str, tuple[Reason, str]]]:
    table = Candidates.build(workers, link)
    return table.keys, dict(table.impossible)


def key(transport: str) -> str:
    return f"split:prefill>decode@{transport}"


def test_each_common_transport_is_a_plan_with_a_link_of_its_own() -> None:
    table = Candidates.build([prefill(), worker(Role.DECODE)], link)
    assert table.keys == (key("mooncake"), key("nixl"))
    assert list(table.alpha_s) == [0.25, 0.5]
    assert len(table.links) == 2
    assert not table.impossible


def test_one_transport_can_be_down_alone() -> None:
    table = Candidates.build([prefill(), worker(Role.DECODE)], link, down={key("nixl"): "moves fail"})
    assert table.keys == (key("mooncake"),)
    assert table.impossible == {key("nixl"): (Reason.PATH_DOWN, "moves fail")}


def test_unequal_layouts_keep_the_transport_they_were_started_with() -> None:
    for tp in (1, 4):
        wide = prefill(layout=KVLayout(tp=2))
        allowed, impossible = keys(wide, worker(Role.DECODE, layout=KVLayout(tp=tp)))
        assert allowed == (key("mooncake"),)
        assert impossible == {
            key("nixl"): (Reason.INCOMPATIBLE_LAYOUT, "unequal layouts move over mooncake alone")
        }
    only = replace(worker(Role.DECODE, layout=KVLayout(tp=4)), transports=("nixl",))
    assert keys(prefill(layout=KVLayout(tp=2)), only)[0] == (key("nixl"),)


def test_no_plan_joins_two_page_sizes() -> None:
    for src, dst in ((1, 16), (16, 1), (32, 64)):
        allowed, impossible = keys(
            prefill(layout=KVLayout(page_size=src)), worker(Role.DECODE, layout=KVLayout(page_size=dst))
        )
        assert allowed == ()
        assert set(impossible) == {key("mooncake"), key("nixl")}
        assert all(f"page size {src} on prefill, {dst} on decode" in why for _, why in impossible.values())


def test_workers_without_the_plugin_are_used_for_what_they_have() -> None:
    stock = {one: replace(worker(Role.PREFILL), transports=(one,)) for one in BOTH}
    sink = {one: replace(worker(Role.DECODE), transports=(one,)) for one in BOTH}
    assert keys(prefill(), sink["mooncake"])[0] == (key("mooncake"),)
    assert keys(prefill(), sink["nixl"])[0] == (key("nixl"),), "its second port serves NIXL to anybody"
    assert keys(stock["mooncake"], worker(Role.DECODE))[0] == (key("mooncake"),)
    allowed, impossible = keys(stock["nixl"], worker(Role.DECODE))
    assert allowed == ()
    assert "does not tell decode workers" in impossible[key("nixl")][1]

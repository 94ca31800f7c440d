"""A pair with two transports behind the router: each request over one of them, and each failing alone."""

import asyncio
import json
from typing import Any

import pytest

from kvferry.models.link_speed import LinkSpeeds
from kvferry.models.terms.transfer import Transfers

TEXT = {"text": "hello " * 4000, "sampling_params": {"max_new_tokens": 4}}
PORT = 7000
LOST = b'{"error": {"message": "KVTransferError: nothing arrives"}}'


def told(transports: Any) -> list[Any]:
    dual = {"on": True, "transports": transports}
    return [{"kvferry": {"version": "0.1.0", "instance": "i", "features": {"dual_transport": dual}}}]


@pytest.fixture
async def dual(worker: Any, fake: Any) -> Any:
    """(prefill, decode), both with two transports."""
    rooms = fake.Rooms()
    ports = told({"mooncake": PORT, "nixl": PORT + 1})
    return (
        await worker(
            "prefill", rooms, page_size=64, disaggregation_bootstrap_port=PORT, internal_states=ports
        ),
        await worker("decode", rooms, page_size=64, internal_states=told({"mooncake": None, "nixl": None})),
    )


def prefer(transport: str) -> dict[str, Any]:
    """Paths that make one transport the better one."""
    slow = {"mooncake": "tcp_25g", "nixl": "tcp_25g"}
    return {
        "slo_ttft_s": 0.5,
        "path_classes": {**slow, transport: "nvlink4_h100_h200_p2p"},
    }


def transport_of(answer: Any) -> str:
    return str(answer.plan).rpartition("@")[2]


@pytest.mark.parametrize(("transport", "port"), [("mooncake", PORT), ("nixl", PORT + 1)])
async def test_the_chosen_transport_is_sent_as_its_port_to_both_halves(
    dual: Any, route: Any, transport: str, port: int
) -> None:
    router = await route(*dual, **prefer(transport))
    answer = await router.post(body=TEXT)
    assert (answer.status, transport_of(answer)) == (200, transport)
    assert [one.seen[-1].json["bootstrap_port"] for one in dual] == [port, port]
    record = router.record(answer.headers)
    assert record.chosen.transport == transport
    assert [one.plan.rpartition("@")[2] for one in record.alternatives] != [transport]
    assert len(record.alternatives) == 1


async def test_workers_and_links_show_both(dual: Any, route: Any) -> None:
    router = await route(*dual, **prefer("nixl"))
    rows = {row["role"]: row for row in json.loads((await router.get("/kvferry/workers")).raw)["workers"]}
    assert rows["prefill"]["transports"] == rows["decode"]["transports"] == ["mooncake", "nixl"]
    assert rows["prefill"]["bootstrap_ports"] == {"mooncake": PORT, "nixl": PORT + 1}
    links = json.loads((await router.get("/kvferry/links")).raw)["links"]
    assert {(one["transport"], one["path_class"]) for one in links} == {
        ("mooncake", "tcp_25g"),
        ("nixl", "nvlink4_h100_h200_p2p"),
    }


@pytest.mark.parametrize("broken", ["mooncake", "nixl"])
async def test_a_broken_transport_costs_one_request_at_a_time_and_each_is_served(
    dual: Any, route: Any, fake: Any, broken: str
) -> None:
    prefill, decode = dual
    other = {"mooncake": "nixl", "nixl": "mooncake"}[broken]
    router = await route(*dual, **prefer(broken))
    breakers = router.ferry.fleet.breakers
    key = f"split:{prefill.url}>{decode.url}@{broken}"
    assert transport_of(await router.post(body=TEXT)) == broken

    decode.acts.append(fake.Act(status=500, body=LOST))
    answer = await router.post(body=TEXT)
    assert (answer.status, transport_of(answer)) == (200, other), "rescued on the same pair"
    assert router.record(answer.headers).outcome.rescued_from == (key,)
    assert list(breakers.open()) == [key]

    breakers._trips[key].until_s = router.ferry.clock()
    decode.acts.append(fake.Act(status=500, body=LOST, delay_s=0.3))
    at_once = [asyncio.create_task(router.post(body=TEXT))]
    await asyncio.sleep(0.1)
    at_once += [asyncio.create_task(router.post(body=TEXT)) for _ in range(5)]
    answers = await asyncio.gather(*at_once)
    assert [(one.status, transport_of(one)) for one in answers] == [(200, other)] * 6
    paid = [one for one in answers if router.record(one.headers).outcome.rescued_from]
    assert len(paid) == 1, "only the first tried the broken one"
    assert breakers._trips[key].failures == 2

    breakers._trips[key].until_s = router.ferry.clock()
    # a move that failed late has shown its link to be slow, too: that is not the breaker's matter
    learner = router.ferry.fleet.lessons.learner
    learner.speeds, learner.transfers = LinkSpeeds(), Transfers()
    assert transport_of(await router.post(body=TEXT)) == broken
    assert not breakers.open()
    assert transport_of(await router.post(body=TEXT)) == broken


async def test_workers_of_two_page_sizes_never_meet(worker: Any, route: Any, fake: Any) -> None:
    """It would end the decode worker's scheduler."""
    rooms = fake.Rooms()
    prefill = await worker("prefill", rooms, page_size=16)
    decode = await worker("decode", rooms, page_size=1)
    router = await route(prefill, decode, policy="always_split")
    answer = await router.post(body=TEXT)
    assert answer.status == 503
    assert b"page size 16 on prefill, 1 on decode" in answer.raw
    colocated = await worker("colocated", rooms)
    router = await route(prefill, decode, colocated, policy="always_split")
    assert (await router.post(body=TEXT)).plan == f"colocated:{colocated.url}"
    assert not prefill.seen
    assert not decode.seen


async def test_a_worker_without_the_plugin_is_used_for_its_one_transport(
    dual: Any, worker: Any, route: Any, fake: Any
) -> None:
    prefill, _ = dual
    stock = await worker("decode", prefill.rooms, page_size=64)
    router = await route(prefill, stock, **prefer("nixl"))
    assert transport_of(await router.post(body=TEXT)) == "mooncake"
    assert stock.seen[-1].json["bootstrap_port"] == PORT

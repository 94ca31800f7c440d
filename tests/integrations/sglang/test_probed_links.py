"""A router takes what a probe measured for a link, unless it was told otherwise by hand."""

import dataclasses
import json
from typing import Any

import pytest

from kvferry.integrations.redis.connection import open_store
from kvferry.integrations.redis.paths import PathBoard
from kvferry.integrations.sglang.links import Links
from kvferry.models.paths.curve import Curve
from kvferry.models.paths.fit import Fit
from kvferry.models.paths.probed import Probed, toml_of_probed
from kvferry.policy.kvshape import KVShape
from kvferry.policy.link import Evidence
from kvferry.policy.worker import Role, Worker

PATH = Probed(
    ("cpu-2", "10.0.0.2"), ("cpu-5",), "mooncake", Fit(Curve(80e-6, 1 / 0.6e9, 3e-6), 0.05, 0.2, 1.0, 90),
    "tcp_100g", False, "slow", 1e-10, 4e-3, 1e9, 1e9,
)  # fmt: skip
SRC, DST = (
    Worker(f"http://{host}:1", f"http://{host}:1", role, "m", KVShape(2, 2, 64), host=host)
    for host, role in (("10.0.0.2", Role.PREFILL), ("cpu-5", Role.DECODE))
)


def test_the_probed_pair_and_only_it_has_the_probe() -> None:
    links = Links.load()
    before = links.of(SRC, DST, "mooncake")
    assert (before.path_class, before.evidence) == ("tcp_100g", Evidence.CATALOGUE)
    links.take([PATH])
    link = links.of(SRC, DST, "mooncake")
    assert (link.path_class, link.evidence) == (PATH.name, Evidence.PROBE)
    assert link.beta_bytes_per_s == pytest.approx(0.6e9)
    assert link.handoff_s == before.handoff_s
    assert links.of(DST, SRC, "mooncake").evidence is Evidence.CATALOGUE
    assert links.of(SRC, DST, "nixl").evidence is Evidence.CATALOGUE
    links.take([])
    assert links.of(SRC, DST, "mooncake") == before


def test_a_class_that_this_router_does_not_know_leaves_the_rest_to_its_own() -> None:
    links = Links.load()
    links.take([dataclasses.replace(PATH, claimed_class="somebody's own", met=True)])
    link = links.of(SRC, DST, "mooncake")
    assert link.evidence is Evidence.PROBE
    assert link.handoff_s == links.classes["tcp_100g"].handoff_s


def test_what_was_written_by_hand_goes_first(tmp_path: Any) -> None:
    links = Links.load(given={"mooncake": "tcp_25g"})
    links.take([PATH])
    assert links.of(SRC, DST, "mooncake").path_class == "tcp_25g"
    file = tmp_path / "links.toml"
    file.write_text('[[rule]]\npath = "tcp_25g"\nsrc_host = ["10.0.0.2"]\n')
    links = Links.load(file)
    links.take([PATH])
    assert links.of(SRC, DST, "mooncake").path_class == "tcp_25g"
    file.write_text('[[rule]]\npath = "tcp_25g"\n')  # a kind of link: what was measured of one is better
    links = Links.load(file)
    links.take([PATH])
    assert links.of(SRC, DST, "mooncake").path_class == PATH.name


def test_the_file_of_a_probe_gives_the_same_link_as_the_store(tmp_path: Any) -> None:
    links = Links.load()
    links.take([PATH])
    by_store = links.of(SRC, DST, "mooncake")
    file = tmp_path / "paths.toml"
    file.write_text(toml_of_probed([PATH], links.classes))
    by_file = Links.load(file).of(SRC, DST, "mooncake")
    for a, b in zip(dataclasses.astuple(by_store), dataclasses.astuple(by_file), strict=True):
        assert a == (b if isinstance(b, str) else pytest.approx(b))


async def test_a_running_router_takes_probes_from_the_store(pair: Any, route: Any, eventually: Any) -> None:
    workers = await pair()
    router = await route(*workers.all)
    path = dataclasses.replace(PATH, src_hosts=("here", "localhost"), dst_hosts=("localhost",))
    store = await open_store(router.store_url)

    async def link() -> Any:
        (found,) = json.loads((await router.get("/kvferry/links")).raw)["links"]
        return found

    before = await link()
    assert (before["evidence"], before["probe"]) == ("catalogue", None)
    try:
        await PathBoard(store, print).write([path])
        await eventually(lambda: router.ferry.fleet.link_of(*ends(router), "mooncake").evidence == "probe")
        found = await link()
        assert (found["evidence"], found["path_class"]) == ("probe", path.name)
        assert found["beta_bytes_per_s"] == pytest.approx(0.6e9)
        assert (
            found["probe"].items() >= {"claimed_class": "tcp_100g", "met": False, "verdict": "slow"}.items()
        )
        assert found["probe"]["age_s"] > 24 * 3600  # old, and yet better than a guess
        assert (
            await router.post(body={"text": "hello", "sampling_params": {"max_new_tokens": 2}})
        ).status == 200
    finally:
        await store.client.delete(store.keys.paths)
        await store.close()


def ends(router: Any) -> tuple[Worker, Worker]:
    found = {one.worker.role: one.worker for one in router.ferry.fleet.members.values()}
    return found[Role.PREFILL], found[Role.DECODE]

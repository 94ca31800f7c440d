"""Whole runs between agents in processes of their own."""

from collections.abc import Sequence
from itertools import permutations

import pytest

from kvferry.integrations.probe.run import Scope, probe

MIB = 2**20
SMALL = Scope(largest_bytes=MIB, repeats=2, budget_s=10.0)


def pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    return list(permutations(names, 2))


async def test_every_ordered_pair_is_measured_over_each_transport(start):
    hosts = [start(name) for name in ("cpu-1", "cpu-2")]
    told = []
    found = await probe(
        [host.address for host in hosts], ["local", "mooncake"], scope=SMALL, progress=told.append
    )
    if any("pip install" in (one.error or "") for one in found):
        pytest.skip(str(found[-1].error))
    assert [(one.src, one.dst, one.transport) for one in found] == [
        (*pair, transport) for transport in ("local", "mooncake") for pair in pairs(["cpu-1", "cpu-2"])
    ]
    for one in found:
        assert one.error is None
        assert {sample.moved_bytes for sample in one.samples} == {4096 * 4**n for n in range(5)}
        assert {sample.concurrency for sample in one.samples} == {1, 2, 4}
        assert one.first_contact_s >= 0.0 <= one.registration_s_per_byte
        assert one.src_address in [host.address for host in hosts]
    assert (told[-1].path, told[-1].paths, told[-1].moves) == (4, 4, len(found[-1].samples))
    assert sum(each.path == 1 for each in told) == len(found[0].samples)
    again = await probe([host.address for host in hosts], ["local"], scope=SMALL)
    assert not any(one.error for one in again)


async def test_a_host_that_dies_midway_costs_only_its_own_pairs(start):
    hosts = {name: start(name) for name in ("a", "b", "c")}

    def kill(progress):
        if progress.dst == "c" and progress.moves == 5:
            hosts["c"].process.kill()
            hosts["c"].process.wait()

    found = await probe([host.address for host in hosts.values()], ["mooncake"], scope=SMALL, progress=kill)
    if any("pip install" in (one.error or "") for one in found):
        pytest.skip(str(found[0].error))
    assert [(one.src, one.dst) for one in found] == pairs("abc")
    for one in found:
        assert bool(one.error) == ("c" in (one.src, one.dst)), one
    met = found[1]
    assert len(met.samples) >= 5
    assert len(met.samples) < len(found[0].samples)


async def test_hosts_that_cannot_be_measured_say_why(start, tmp_path):
    (tmp_path / "mooncake").mkdir()
    (tmp_path / "mooncake" / "__init__.py").touch()
    (tmp_path / "mooncake" / "engine.py").write_text("raise ImportError('libibverbs.so.1: cannot open')\n")
    whole = start("whole", token="right")
    lacking = start("lacking", token="right", environment={"PYTHONPATH": str(tmp_path)})
    other = start("other", token="another")
    addresses = [whole.address, lacking.address, other.address, "127.0.0.1:1"]
    found = {
        (one.src, one.dst): one.error
        for one in await probe(addresses, ["mooncake"], scope=SMALL, token="right")
    }
    assert set(found) == set(pairs(["whole", "lacking", other.address, "127.0.0.1:1"]))
    assert "libibverbs.so.1" in found["whole", "lacking"]
    assert found["whole", "lacking"].startswith(lacking.address)
    assert found["whole", other.address] == f"{other.address}: wrong token, or none"
    assert "127.0.0.1:1" in found["whole", "127.0.0.1:1"]


async def test_hosts_of_one_name_are_told_apart_by_address(start):
    hosts = [start("twin"), start("twin")]
    found = await probe([host.address for host in hosts], ["local"], scope=SMALL)
    assert [(one.src, one.dst) for one in found] == pairs([host.address for host in hosts])


async def test_nothing_is_asked_of_anyone_for_what_makes_no_sense():
    with pytest.raises(ValueError, match="no transport 'pigeon': there are local, mooncake, nixl"):
        await probe(["a:1", "b:1"], ["pigeon"])
    with pytest.raises(ValueError, match="two agents"):
        await probe(["a:1"])
    with pytest.raises(ValueError, match="each given once"):
        await probe(["a:1", "a:1"])


async def test_agents_that_nobody_reaches_are_told_of_without_transports_to_ask_for():
    found = await probe(["127.0.0.1:1", "127.0.0.1:2"])
    assert found
    assert all(one.error for one in found)


async def test_each_path_is_told_when_it_is_measured(start):
    hosts = [start(name) for name in ("a", "b")]
    told, moves = [], []
    found = await probe(
        [host.address for host in hosts],
        ["local"],
        scope=SMALL,
        progress=lambda now: moves.append((now.path, len(told))),
        done=told.append,
    )
    assert told == found
    assert {before for path, before in moves if path == 2} == {1}


async def test_one_agent_by_two_addresses_is_no_pair(start):
    host = start("a")
    port = host.address.rpartition(":")[2]
    with pytest.raises(ValueError, match=f"{host.address} and localhost:{port} are one agent"):
        await probe([host.address, f"localhost:{port}"], ["local"], scope=SMALL)

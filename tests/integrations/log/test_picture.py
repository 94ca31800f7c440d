"""A logged picture gives back, to the last bit, what a decision was made from."""

import asyncio
import sys
from dataclasses import fields, replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.integrations.log.background import BackgroundLog
from kvferry.integrations.log.codec import read_record, write_record
from kvferry.integrations.log.convert import record_of
from kvferry.integrations.log.export import export
from kvferry.integrations.log.jsonl import JsonlWriter
from kvferry.integrations.log.picture import MAX_WORKERS, TELL_EVERY, Pictures
from kvferry.integrations.log.reader import ReadReport, read_log
from kvferry.integrations.log.record import DecisionRecord
from kvferry.integrations.log.replay import NoPictureError, Replay, replay
from kvferry.integrations.log.source import files_of
from kvferry.models.workload.reader import read
from kvferry.policy.base import Policy, make
from kvferry.policy.candidates import Candidates
from kvferry.policy.cluster import Cluster
from kvferry.policy.decision import NoPlanError
from kvferry.policy.expected_loss import ExpectedLoss
from kvferry.policy.request import Request
from kvferry.policy.worker import Load, Role, Speed

sys.path.insert(0, str(Path(__file__).parents[2] / "policy"))
from worlds import ask, cluster, clusters, fleets, link, requests, trio, worker

POLICIES = ("kvferry", "always_split", "coin(0.5)", "random_by_workers", "dynamo_isl_or_load", "ppd_table")


def logged(request: Request, world: Cluster, policy: Policy, told: dict[str, bytes]) -> DecisionRecord:
    """A decision's record, written and read back."""
    picture = Pictures(lambda name, line: told.update({name: line})).take(request, world)
    record = record_of(request, policy.decide(request, world), time_s=1e9, router="r", picture=picture)
    return read_record(write_record(record))


def same(one: object, other: object) -> None:
    for each in fields(one):  # type: ignore[arg-type]
        first, second = getattr(one, each.name), getattr(other, each.name)
        if isinstance(first, np.ndarray):
            np.testing.assert_array_equal(first, second, err_msg=each.name)
            assert first.dtype == second.dtype
        elif each.name == "workers":
            bare = [replace(worker, load=Load(), speed=Speed(), facts={}) for worker in first]
            assert bare == list(second)
        elif each.name not in ("state", "candidates", "corrector"):
            assert first == second, each.name


@given(world=clusters(), request=requests, name=st.sampled_from(POLICIES))
def test_a_replay_is_what_was_decided_from(world: Cluster, request: Request, name: str) -> None:
    told: dict[str, bytes] = {}
    try:
        record = logged(request, world, make(name), told)
    except NoPlanError:
        return
    request_again, world_again = replay(record, told)
    same(world.candidates, world_again.candidates)
    same(world.state, world_again.state)
    assert world_again.time_s == world.time_s
    held = {name: tokens for name, tokens in request.held_tokens.items() if name in world.candidates.index}
    assert request_again == replace(
        request, id=record.id, held_tokens={name: tokens for name, tokens in held.items() if tokens}
    )
    again = make(name).decide(request_again, world_again)
    assert again.plan.key == record.chosen.plan
    assert str(again.reason) == record.reason


@given(drawn=fleets(same_layout=True), data=st.data())
def test_first_contacts_open_breakers_and_tried_plans_come_back(drawn: list, data: st.DataObject) -> None:
    def link_of(src, dst, transport):  # type: ignore[no-untyped-def]
        return link(src, dst, transport, first_contact_s=0.3, registration_s_per_byte=1e-10)

    keys = Candidates.build(drawn, link_of).keys
    splits = [key for key in keys if key.startswith("split")]
    some = st.sets(st.sampled_from(splits))
    met, down, gone = data.draw(some), data.draw(some), data.draw(some)
    table = Candidates.build(drawn, link_of, dict.fromkeys(down, "five in a row"), frozenset(met))
    world = replace(Cluster.of(drawn, link_of), candidates=table, excluded=frozenset(gone & set(table.keys)))
    world = replace(world, state=type(world.state).of(table))
    told: dict[str, bytes] = {}
    try:
        record = logged(ask(), world, make("kvferry"), told)
    except NoPlanError:
        return
    _, again = replay(record, told)
    same(table, again.candidates)
    assert again.excluded == world.excluded


def test_links_that_share_hosts_and_differ_all_the_same_come_back() -> None:
    fleet = [worker(Role.PREFILL, f"p{n}", host="one") for n in range(2)]
    fleet += [worker(Role.DECODE, f"d{n}", host="two") for n in range(2)]
    world = Cluster.of(fleet, lambda src, dst, name: link(src, dst, name, alpha_s=0.1 * ord(src.id[-1])))
    told: dict[str, bytes] = {}
    _, again = replay(logged(ask(), world, make("kvferry"), told), told)
    same(world.candidates, again.candidates)


@given(seed=st.integers(0, 2**63))
def test_what_was_explored_is_explored_again(seed: int) -> None:
    world, policy, told = cluster(trio()), ExpectedLoss(explore=0.5, explore_budget=1.0), dict[str, bytes]()
    record = logged(ask(3000, seed=seed), world, policy, told)
    again = policy.decide(*replay(record, told))
    assert (again.plan.key, again.explored) == (record.chosen.plan, record.explored)
    assert (again.propensity_mode, again.propensity_plan) == (
        record.propensity.mode,
        record.propensity.plan,
    )


def test_a_table_is_told_once_for_many_pictures_and_again_in_time() -> None:
    told: list[str] = []
    pictures, world = Pictures(lambda name, line: told.append(name)), cluster(trio())
    for n in range(TELL_EVERY + 1):
        # loads change and pairs meet: the table is the same
        if n in (1, 5):
            table = Candidates.build(trio(), link, met=frozenset(world.candidates.keys))
            world = Cluster(replace(table), world.state, float(n))
        assert pictures.take(ask(), world) is not None
    assert told == [told[0]] * 2


def test_a_cluster_that_is_too_large_has_no_picture() -> None:
    world = cluster([worker(Role.COLOCATED, f"c{n}") for n in range(MAX_WORKERS + 1)])
    assert Pictures(lambda name, line: None).take(ask(), world) is None


def test_what_cannot_be_replayed_is_said() -> None:
    told: dict[str, bytes] = {}
    record = logged(ask(), cluster(trio()), make("kvferry"), told)
    picture = record.picture
    assert picture is not None
    with pytest.raises(NoPictureError, match="no picture"):
        replay(msgspec.structs.replace(record, picture=None), told)
    with pytest.raises(NoPictureError, match="is not in the log"):
        replay(record, {})
    with pytest.raises(NoPictureError, match="cannot be read"):
        replay(record, {picture.cluster: b"{"})
    for numbers in (b"", picture.numbers[:-5], bytes(8)):
        broken = msgspec.structs.replace(picture, numbers=numbers)
        with pytest.raises(NoPictureError, match="cannot be read"):
            replay(msgspec.structs.replace(record, picture=broken), told)


@pytest.mark.parametrize("name", ["copy.jsonl", "copy.jsonl.gz", "copy.parquet"])
async def test_files_carry_the_tables_that_their_pictures_need(tmp_path: Path, name: str) -> None:
    worlds = [cluster(trio()), cluster([worker(Role.COLOCATED, "alone")])]
    writer = JsonlWriter(tmp_path / "decisions.jsonl", max_bytes=40_000)
    log = BackgroundLog(writer)
    pictures = Pictures(log.table)
    log.start()
    records = []
    for n in range(24):
        world, request = worlds[n // 4 % 2], ask(100 + n, seed=n)
        record = record_of(
            request,
            make("kvferry").decide(request, world),
            time_s=1e9 + n,
            router="r",
            picture=pictures.take(request, world),
        )
        records.append(record)
        log.put(record)
        while log.queued:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    await log.close()
    files = files_of(str(tmp_path))
    assert len(files) > 1  # rotated: each file has what it needs
    for path in files:
        _all_replay(list(read_log(str(path), report := ReadReport())), report)
        assert len(read(path)) == report.read  # as a workload, too
    report = ReadReport()
    assert export(read_log(str(tmp_path), report), tmp_path / name, report.clusters) == len(records)
    copied = ReadReport()
    found = list(read_log(str(tmp_path / name), copied))
    assert found == records
    _all_replay(found, copied)


def _all_replay(records: list[DecisionRecord], report: ReadReport) -> None:
    assert report.bad == 0
    again = Replay(report.clusters)
    for record in records:
        assert make("kvferry").decide(*again(record)).plan.key == record.chosen.plan

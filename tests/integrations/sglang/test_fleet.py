"""The picture of the workers: whose load it is, who is usable, what a return forgets."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.integrations.sglang.breaker import TRIAL_S, Breakers, uses
from kvferry.integrations.sglang.describe import worker_of
from kvferry.integrations.sglang.fleet import Fleet
from kvferry.integrations.sglang.links import Links
from kvferry.models.book import Book, Entry, Totals
from kvferry.policy.plan import Split

LINKS = Links.load()
URLS = {"prefill": "http://p:1", "decode": "http://d:1", "colocated": "http://c:1"}


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def fleet_of(fake: Any, others: Any = dict) -> Fleet:
    clock = Clock()
    fleet = Fleet(clock, LINKS.of, Book(clock), Breakers(clock), others=others)
    for role, url in URLS.items():
        info = {**fake.golden(f"{role}_server_info"), "served_model_name": "Qwen3-8B"}
        fleet.admit(worker_of(url, info, fake.golden(f"{role}_loads")))
    return fleet


def loads(**counters: float) -> dict[str, Any]:
    return {"loads": [{"timestamp": 50.0, **counters}], "answered_s": 50.0}


counts = st.integers(0, 10**6)


@given(counts, counts, counts, counts, counts, counts)
def test_what_is_not_ours_is_others_and_never_negative(
    fake: Any, waiting: int, running: int, used: int, own_new: int, own_sequences: int, own_context: int
) -> None:
    fleet = fleet_of(fake)
    url = URLS["colocated"]
    fleet.book.start("k", Entry(url, url, "", own_new, own_sequences, own_context, start_s=fleet.clock()))
    fleet.read_loads(
        url,
        loads(num_waiting_uncached_tokens=waiting, num_running_reqs=running, num_total_tokens=used),
    )
    load, own = fleet.members[url].worker.load, fleet.book.now[url]
    for foreign, ours, reported in (
        (load.foreign_prefill_tokens, own.prefill_tokens, waiting),
        (load.foreign_decodes, own.decodes, running),
        (load.foreign_context_tokens, own.context_tokens, used),
    ):
        assert foreign >= 0.0
        assert foreign + ours == max(reported, ours)


def test_other_routers_work_is_not_counted_twice(fake: Any) -> None:
    url = URLS["colocated"]
    fleet = fleet_of(fake, others=lambda: {url: Totals(300.0, 2.0, 900.0)})
    fleet.read_loads(url, loads(num_waiting_uncached_tokens=1000, num_running_reqs=5, num_total_tokens=1000))
    load = fleet.members[url].worker.load
    assert (load.foreign_prefill_tokens, load.foreign_decodes, load.foreign_context_tokens) == (700, 3, 100)
    state = fleet.cluster("Qwen3-8B").state
    place = fleet.cluster("Qwen3-8B").candidates.index[url]
    assert state.own_prefill_tokens[place] == 300.0


def test_work_that_ended_after_the_snapshot_is_not_taken_for_somebody_elses(fake: Any) -> None:
    fleet = fleet_of(fake)
    url = URLS["colocated"]
    fleet.book.start("k", Entry(url, url, "", 500.0, 1.0, 800.0, start_s=fleet.clock()))
    fleet.clock.now_s += 2.0
    fleet.book.end("k")
    answer = loads(num_waiting_uncached_tokens=500)
    answer["answered_s"] = 51.0
    fleet.read_loads(url, answer)
    assert fleet.members[url].worker.load.foreign_prefill_tokens == 0.0
    assert fleet.cluster("Qwen3-8B").state.own_prefill_tokens.sum() == 0.0


def test_a_prefill_worker_has_no_decodes_of_others(fake: Any) -> None:
    fleet = fleet_of(fake)
    fleet.read_loads(URLS["prefill"], loads(num_running_reqs=3, num_total_tokens=5000))
    load = fleet.members[URLS["prefill"]].worker.load
    assert (load.foreign_decodes, load.foreign_context_tokens) == (0.0, 0.0)


def test_a_dropped_worker_is_in_no_plan_and_wakes_its_watchers_once(fake: Any) -> None:
    fleet = fleet_of(fake)
    woken: list[str] = []
    fleet.members[URLS["prefill"]].watchers.add(lambda: woken.append("x"))
    before = fleet.cluster("Qwen3-8B").candidates.plans
    fleet.drop(URLS["prefill"], "gone")
    fleet.drop(URLS["prefill"], "gone again")
    fleet.drop("http://unknown", "never there")
    assert woken == ["x"]
    assert any(isinstance(plan, Split) for plan in before)
    after = fleet.cluster("Qwen3-8B").candidates
    assert not any(isinstance(plan, Split) for plan in after.plans)
    assert fleet.members[URLS["prefill"]].why_down == "gone"


def test_a_worker_that_is_back_starts_from_nothing(fake: Any) -> None:
    fleet = fleet_of(fake)
    url = URLS["prefill"]
    key = Split(url, URLS["decode"], "mooncake").key
    fleet.contacted(key)
    fleet.breakers.failed(key, "timed out")
    fleet.members[url].prefixes.add(range(10))
    fleet.drop(url, "gone")
    fleet.admit(fleet.members[url].worker)
    assert not fleet.met
    assert not fleet.breakers.open()
    assert len(fleet.members[url].prefixes) == 0


def test_an_id_that_begins_another_one_is_not_that_one() -> None:
    key = Split("http://a:30001", "http://b:30002", "mooncake").key
    assert uses(key, "http://a:30001")
    assert uses(key, "http://b:30002")
    assert not uses(key, "http://a:3000")
    assert not uses(key, "http://b:3000")


def test_an_open_breaker_takes_its_plan_away_until_it_closes(fake: Any) -> None:
    fleet = fleet_of(fake)
    key = Split(URLS["prefill"], URLS["decode"], "mooncake").key
    assert key in fleet.cluster("Qwen3-8B").candidates.keys
    fleet.breakers.failed(key, "timed out")
    table = fleet.cluster("Qwen3-8B").candidates
    assert key not in table.keys
    assert table.impossible[key][1] == "timed out"
    fleet.clock.now_s += 2.5
    assert key in fleet.cluster("Qwen3-8B").candidates.keys


def test_many_failures_at_once_are_one() -> None:
    clock = Clock()
    breakers = Breakers(clock)
    for _ in range(16):
        breakers.failed("k", "why")
    clock.now_s += 2.5
    assert not breakers.open()


def test_one_request_at_a_time_tries_a_path_that_has_failed() -> None:
    clock = Clock()
    breakers = Breakers(clock)
    breakers.tried("k")
    assert not breakers.open(), "a path that never failed is for all"
    breakers.failed("k", "why")
    breakers.tried("k")
    clock.now_s += 2.5
    assert not breakers.open()
    breakers.tried("k")
    assert breakers.open() == {"k": "why (one request is trying it)"}
    clock.now_s += 1.0
    breakers.failed("k", "still")
    assert breakers.open() == {"k": "still"}
    clock.now_s += 3.5
    assert breakers.open(), "a failed trial doubles the pause"
    clock.now_s += 1.0
    breakers.tried("k")
    assert breakers.open()
    clock.now_s += TRIAL_S + 1.0
    assert not breakers.open(), "a trial without a result is followed by another"
    breakers.tried("k")
    assert breakers.succeeded("k")
    assert not breakers.open()


def test_pauses_double_up_to_their_limit_and_a_success_forgets_them() -> None:
    clock = Clock()
    breakers = Breakers(clock)
    pauses = []
    for _ in range(8):
        breakers.failed("k", "why")
        start_s = clock.now_s
        while breakers.open():
            clock.now_s += 0.5
        pauses.append(clock.now_s - start_s)
    assert pauses == pytest.approx([2, 4, 8, 16, 32, 60, 60, 60])
    assert breakers.succeeded("k")
    assert not breakers.succeeded("k")
    breakers.failed("k", "why")
    clock.now_s += 2.5
    assert not breakers.open()

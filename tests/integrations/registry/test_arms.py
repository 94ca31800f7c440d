"""Arms: drawn as their shares say, counted where they can be compared, judged by what the client saw."""

from typing import Any

import msgspec
import pytest

from kvferry.integrations.cli.models_table import silent_arms
from kvferry.integrations.log.record import (
    Chosen,
    DecisionRecord,
    Outcome,
    RequestFacts,
    Slo,
)
from kvferry.integrations.registry.arms import Arms, Model, Running
from kvferry.integrations.registry.counts import ArmCounts, Counts, totals
from kvferry.integrations.registry.judge import comparisons, judge
from kvferry.integrations.registry.loss import missed
from kvferry.integrations.registry.roles import Roles

CANARY = Roles().promoted("m-1").canaried("m-2", 0.2)
SLO = Slo(1.0, 0.1)


def record(name: str, **facts: Any) -> DecisionRecord:
    request = RequestFacts(slo=SLO, stream=True, **facts)
    return DecisionRecord(name, 0.0, Chosen("c", "colocated", "c", "c"), "rule", request=request)


def running(roles: Roles = CANARY, **changes: Any) -> Running:
    models = {"live": Model(roles.live), "canary": Model(roles.canary) if roles.canary else None}
    return Running(roles, **{**models, **changes})


def test_shares_are_kept_and_the_same_seed_falls_alike() -> None:
    arms = Arms(0.1)
    arms.run(running())
    drawn = [arms.draw(seed * 2654435761) for seed in range(20_000)]
    found = {name: sum(arm.name == name for arm in drawn) / len(drawn) for name in ("safe", "canary", "live")}
    assert found == pytest.approx({"safe": 0.1, "canary": 0.2, "live": 0.7}, abs=0.015)
    assert [arms.draw(seed * 2654435761).name for seed in range(100)] == [arm.name for arm in drawn[:100]]
    by_name = {arm.name: arm for arm in drawn}
    assert {name: arm.model.version for name, arm in by_name.items()} == {
        "live": "m-1",
        "canary": "m-2",
        "safe": "structured",
    }
    assert by_name["safe"].rule is not None
    assert by_name["safe"].rule.name == "length_threshold(2048)"


def test_without_a_learned_model_there_is_one_arm() -> None:
    arms = Arms(0.5)
    for roles in (Roles(), Roles().shadowed("m-1")):
        arms.run(running(roles))
        assert {arms.draw(seed).name for seed in range(500)} == {"live"}


def test_a_canary_that_could_not_be_loaded_gets_nothing_and_nothing_is_counted() -> None:
    arms = Arms(0.1)
    arms.run(running(canary=None, complete=False))
    drawn = [arms.draw(seed * 2654435761) for seed in range(1000)]
    assert {arm.name for arm in drawn} == {"live", "safe"}
    arms.decided("a", drawn[0])
    arms.told(record("a"), Outcome(status="failed"))
    assert not arms.changed


def test_what_came_of_a_request_counts_for_the_arm_and_the_time_it_was_decided_in() -> None:
    counted = []
    arms = Arms(0.3, counted=lambda arm, missed: counted.append((arm, missed)))
    arms.run(running())
    first = arms.stretch
    names = [f"r{seed}" for seed in range(50)]
    drawn = [arms.draw(seed * 2654435761) for seed in range(50)]
    for name, arm in zip(names, drawn, strict=True):
        arms.decided(name, arm)
    arms.run(running(CANARY.rolled_back()))
    for place, name in enumerate(names):
        late = Outcome(ttft_s=2.0 if place % 2 else 0.5)
        arms.told(record(name), late)
        arms.told(record(name), late)  # twice
    assert arms.changed == {first}
    assert sum(first.requests.values()) == 50 == len(counted)
    assert first.requests == {n: sum(a.name == n for a in drawn) for n in first.requests}
    assert sum(first.missed.values()) == 25
    assert sum(first.corrected.values()) == 0


@pytest.mark.parametrize(
    ("version", "fallback", "spoke"), [("m-2", "", 1), ("m-2", "outside", 0), ("structured", "", 0)]
)
def test_a_model_that_had_no_say_is_not_counted_as_if_it_had(version: str, fallback: str, spoke: int) -> None:
    arms = Arms(0.1)
    arms.run(running())
    canary = next(arm for seed in range(1000) if (arm := arms.draw(seed * 2654435761)).name == "canary")
    arms.decided("a", canary)
    made = msgspec.structs.replace(record("a"), model_version=version, fallback=fallback)
    arms.told(made, Outcome(ttft_s=0.5))
    assert canary.stretch.corrected == {"canary": spoke}


def test_a_silent_canary_is_named() -> None:
    silent = Counts(SHARES, {"live": 90, "canary": 30, "safe": 10}, {}, {"live": 80, "canary": 2})
    (line,) = silent_arms(totals([silent]), CANARY)
    assert line.startswith("canary: m-2 corrected 7% of its requests")
    assert not list(silent_arms(totals([silent]), Roles()))
    assert totals([silent])["live"]["corrected_share"] == pytest.approx(80 / 90)


@pytest.mark.parametrize(
    ("stream", "outcome", "expected"),
    [
        (True, Outcome(ttft_s=0.9, itl_s=0.09), False),
        (True, Outcome(ttft_s=1.1, itl_s=0.09), True),
        (True, Outcome(ttft_s=0.9, itl_s=0.2), True),
        (True, Outcome(ttft_s=0.9), False),
        (False, Outcome(e2e_s=1.8, output_tokens=10, ttft_s=5.0), False),
        (False, Outcome(e2e_s=2.0, output_tokens=10), True),
        (False, Outcome(e2e_s=1.5), True),
        (True, Outcome(status="failed"), True),
        (True, Outcome(status="rejected"), None),
        (True, Outcome(status="cancelled", e2e_s=0.5), None),
        (True, Outcome(status="cancelled", e2e_s=9.0, ttft_s=0.5), None),
        (True, Outcome(status="cancelled", e2e_s=1.5), True),
        (False, Outcome(status="cancelled", e2e_s=1.5), None),
        (True, Outcome(), None),
        (False, Outcome(), None),
    ],
)
def test_what_is_missed(stream: bool, outcome: Outcome, expected: bool | None) -> None:
    assert missed(RequestFacts(slo=SLO, stream=stream), outcome) is expected


def counts(shares: dict[str, float], **arms: tuple[int, int]) -> Counts:
    return Counts(shares, {n: of[0] for n, of in arms.items()}, {n: of[1] for n, of in arms.items()})


SHARES = {"safe": 0.1, "canary": 0.2, "live": 0.7}


def test_a_canary_is_judged_by_live_and_by_the_safe_rule() -> None:
    good = {"live": (700, 35), "safe": (100, 5)}
    assert judge(CANARY, [counts(SHARES, canary=(200, 10), **good)]) is None
    bad = judge(CANARY, [counts(SHARES, canary=(200, 100), **good)])
    assert bad is not None
    assert bad.version == "m-2"
    assert "100 of 200 requests, against" in bad.reason
    # several routers, each of which has seen too little
    part = counts(SHARES, canary=(20, 5), live=(70, 4), safe=(10, 0))
    assert judge(CANARY, [part]) is None
    assert judge(CANARY, [part] * 8) is not None


def test_a_canary_that_is_no_worse_than_a_bad_live_version_still_answers_to_the_safe_rule() -> None:
    poor = {"canary": (200, 100), "live": (700, 350)}
    found = judge(CANARY, [counts(SHARES, **poor, safe=(100, 5))])
    assert found is not None
    assert found.version == "m-2"
    assert "the safe rule" in found.reason
    assert judge(CANARY, [counts(SHARES, **poor, safe=(100, 50))]) is None


def test_live_is_judged_by_the_safe_rule_alone() -> None:
    live = Roles().promoted("m-1")
    shares = {"safe": 0.1, "live": 0.9}
    assert comparisons(live) == [("live", "safe")]
    verdict = judge(live, [counts(shares, live=(900, 450), safe=(100, 5))])
    assert verdict is not None
    assert verdict.version == "m-1"
    assert judge(live, [counts(shares, live=(900, 45), safe=(100, 50))]) is None
    assert comparisons(Roles().shadowed("m-1")) == []


async def test_routers_sum_what_they_count_and_writing_twice_changes_nothing(store: Any) -> None:
    boards = [ArmCounts(store, f"router-{name}") for name in ("a", "b")]
    for board in boards:
        arms = Arms(0.1)
        arms.run(running())
        arms.stretch.requests["live"], arms.stretch.missed["live"] = 70, 7
        arms.stretch.corrected["live"] = 60
        for _ in range(3):
            await board.write([arms.stretch])
        arms.run(running())
        arms.stretch.requests["canary"] = 5
        await board.write([arms.stretch])
    liars = (
        b"{",
        b'{"missed": {"live": 9}}',
        b'{"requests": {"live": 9}, "corrected": {"live": 10}}',
        b'{"requests": {"live": -5}, "missed": {"live": -9}}',
        b'{"requests": {"live": 1%s}}' % (b"0" * 400),
        b'{"requests": {"live": 1%s}}' % (b"0" * 18),
        b'{"requests": {"live": 9}, "shares": {"live": -0.5}}',
        b'{"requests": {"live": 9}, "shares": {"live": 1e308}}',
        b'{"requests": {"live": NaN}}',
    )
    for place, told in enumerate(liars):
        await store.client.hset(store.keys.model_arms(CANARY.since), f"liar{place}", told)
    found = await boards[0].read(CANARY.since)
    assert len(found) == 4
    assert totals(found) == {
        "live": {
            "requests": 140,
            "missed": 14,
            "missed_share": 0.1,
            "corrected": 120,
            "corrected_share": 120 / 140,
        },
        "canary": {"requests": 10, "missed": 0, "missed_share": 0.0, "corrected": 0, "corrected_share": 0.0},
    }

"""Deferred fields: filled once, when first read, and like any other field from then on."""

import copy
import pickle
from dataclasses import dataclass, replace

import pytest
from worlds import ask, cluster, trio

from kvferry.policy import base
from kvferry.policy.deferring import Deferring
from kvferry.policy.evaluation import Evaluation


@dataclass(frozen=True, slots=True)
class Sum(Deferring):
    left: int
    right: int
    total: int = 0
    name: str = ""


def deferred() -> tuple[Sum, list[str]]:
    one, asked = Sum(1, 2), list[str]()

    def work() -> dict[str, object]:
        asked.append("work")
        return {"total": one.left + one.right, "name": "three"}

    one.defer(work, "total", "name")
    return one, asked


def test_it_is_filled_once_with_all_that_its_work_gives() -> None:
    one, asked = deferred()
    assert one.left == 1
    assert asked == []
    assert (one.total, one.name, one.total) == (3, "three", 3)
    assert asked == ["work"]


def test_it_compares_prints_copies_and_travels_as_if_it_had_been_there() -> None:
    whole = Sum(1, 2, 3, "three")
    assert deferred()[0] == whole
    assert repr(deferred()[0]) == repr(whole)
    assert replace(deferred()[0], left=9) == replace(whole, left=9)
    assert copy.copy(deferred()[0]) == copy.deepcopy(deferred()[0]) == whole
    assert pickle.loads(pickle.dumps(deferred()[0])) == whole


def test_what_is_no_field_is_still_missing() -> None:
    for one in (deferred()[0], Sum(1, 2)):
        with pytest.raises(AttributeError, match="no attribute 'colour'"):
            _ = one.colour  # type: ignore[attr-defined]


@pytest.mark.parametrize("policy", ["length_threshold(1000)", "always_colocated", "least_load"])
def test_a_fixed_rule_scores_nothing_until_somebody_asks(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored = []
    real = Evaluation.of.__func__.__globals__["score"]  # type: ignore[attr-defined]
    monkeypatch.setattr("kvferry.policy.evaluation.score", lambda *given: scored.append(1) or real(*given))
    decision = base.make(policy).decide(ask(), cluster(trio()))
    assert decision.costs.ttft_s.p50 > 0.0
    assert decision.deadline_s >= 10.0
    assert not scored
    assert decision.costs.score > 0.0
    assert len(decision.alternatives) == 1
    assert decision.reasons_against
    assert scored == [1]

"""The silent deaths are loud, and what is well is left in peace."""

import random
from typing import Any

import msgspec
import pytest

from kvferry.models.health.cluster import found, total
from kvferry.models.health.finding import Finding, State, worst
from kvferry.models.health.judge import judge
from kvferry.models.health.seen import Pair, Seen
from kvferry.models.health.snapshot import Snapshot
from kvferry.models.health.window import LearningWindow
from kvferry.policy.features import FEATURES

SPREAD = 0.3
P90 = 1.2816
INPUTS = {
    name: 1.0
    for name in ("ttft_s", "itl_s", "output_tokens", "prompt_tokens", "queue_s", "prefill_s", "transfer_s",
                 "alloc_s", "decode_s", "moved_bytes", "descriptors")
}  # fmt: skip


def request(rng: random.Random, **changed: Any) -> Seen:
    """One of a cluster where all is well."""
    terms = {}
    for name in ("ttft", "itl", "transfer"):
        p50_s = rng.uniform(0.05, 0.5)
        terms[name] = Pair(
            p50_s, p50_s * 2.718 ** (SPREAD * P90), p50_s * 2.718 ** (SPREAD * rng.gauss(0, 1))
        )
    inputs = {name: rng.random() for name in INPUTS} | {"cached_tokens": 300.0 if rng.random() < 0.5 else 0.0}
    usual: dict[str, Any] = {
        "mode": "split",
        "reason": rng.choice(["queue_gain", "small_prompt", "uncertain_gain"]),
        "features": tuple(rng.random() for _ in FEATURES),
        "terms": terms,
        "inputs": inputs,
        "believed_cached_tokens": 150,
        "learned": True,
    }
    return Seen(**{**usual, **changed})


def snapshot(count: int = 400, seed: int = 1, **changed: Any) -> Snapshot:
    rng = random.Random(seed)
    window = LearningWindow(FEATURES)
    for _ in range(count):
        given = {name: make(rng) if callable(make) else make for name, make in changed.items()}
        window.decided()
        window.ended(request(rng, **given))
    return msgspec.structs.replace(
        window.snapshot(), router="r", version="m-1", evidence={"ttft": count, "transfer": count}
    )


def checks(one: Snapshot, state: State) -> dict[str, Finding]:
    return {finding.check: finding for finding in judge(one) if finding.state is state}


def without(name: str) -> Any:
    return lambda rng: {**request(rng).inputs, name: None}


def feature(name: str, value: float) -> Any:
    def make(rng: random.Random) -> tuple[float, ...]:
        return tuple(value if each == name else rng.random() for each in FEATURES)

    return make


def late(factor: float) -> Any:
    def make(rng: random.Random) -> dict[str, Pair]:
        return {
            name: Pair(pair.p50_s, pair.p90_s, factor * pair.actual_s)
            for name, pair in request(rng).terms.items()
        }

    return make


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("count", [50, 120, 1000])
def test_a_healthy_cluster_raises_no_alarm(seed: int, count: int) -> None:
    findings = judge(snapshot(count, seed))
    assert [finding for finding in findings if finding.state is State.BAD] == []
    assert sum(finding.state is State.WARN for finding in findings) <= 1
    assert len(findings) > 10


@pytest.mark.parametrize(
    ("check", "state", "changed"),
    [
        ("stale loads", State.BAD, {"reason": "stale_load", "safe_rule": True}),
        ("safe rule", State.WARN, {"safe_rule": True}),
        ("fallbacks", State.BAD, {"fallback": "log_prompt_tokens is 12: trained up to 9"}),
        (
            "fallbacks",
            State.BAD,
            {"fallback": lambda rng: "the model failed: x" if rng.random() < 0.1 else ""},
        ),
        ("fallbacks", State.WARN, {"fallback": lambda rng: "out" if rng.random() < 0.5 else ""}),
        ("rescues", State.BAD, {"rescued": lambda rng: rng.random() < 0.4}),
        ("rescues", State.WARN, {"rescued": lambda rng: rng.random() < 0.1}),
        ("failures", State.BAD, {"failed": lambda rng: rng.random() < 0.4}),
        ("choice", State.BAD, {"reason": "path_down"}),
        ("choice", State.WARN, {"reason": "incompatible_layout"}),
        ("telemetry", State.BAD, {"missing": ("unheard",)}),
        ("telemetry", State.WARN, {"missing": lambda rng: ("no_record",) if rng.random() < 0.2 else ()}),
        ("telemetry", State.WARN, {"missing": ("no_plugin",)}),
        ("ttft_s", State.BAD, {"inputs": without("ttft_s")}),
        ("output_tokens", State.BAD, {"inputs": without("output_tokens")}),
        ("cached_tokens", State.WARN, {"inputs": without("cached_tokens")}),
        ("stages", State.BAD, {"inputs": without("transfer_s")}),
        ("stages", State.BAD, {"inputs": without("moved_bytes")}),
        ("prefix cache", State.BAD, {"believed_cached_tokens": 0}),
        ("prefix cache", State.WARN, {"believed_cached_tokens": 900}),
        ("features", State.BAD, {"features": feature("dec_load_age_s", 60.0)}),
        ("features", State.WARN, {"features": feature("dec_kv_use", 0.0)}),
        ("features", State.WARN, {"features": feature("pre_arrivals_per_s", 0.0)}),
        ("features", State.WARN, {"features": ()}),
        ("error ttft/split", State.BAD, {"terms": late(4.0)}),
        ("error transfer/split", State.WARN, {"terms": late(1.8)}),
        ("coverage ttft/split", State.BAD, {"terms": late(2.0)}),
        ("coverage itl/split", State.WARN, {"terms": late(1.15)}),
        ("coverage itl/split", State.WARN, {"terms": late(0.3)}),
    ],
)
def test_each_silent_death_is_told_with_what_to_do(check: str, state: State, changed: dict[str, Any]) -> None:
    finding = checks(snapshot(**changed), state)[check]
    assert finding.do
    assert len(finding.says) > 20
    assert checks(snapshot(), state).get(check) is None


def test_an_input_that_never_arrives_is_named() -> None:
    dead = checks(snapshot(inputs=without("transfer_s")), State.BAD)["stages"]
    assert "transfer_s" in dead.says
    constant = checks(snapshot(features=feature("chunks", 1.0)), State.OK)["constant features"]
    assert "chunks" in constant.says


def test_a_change_is_told_from_what_was_never_right() -> None:
    rng, window = random.Random(3), LearningWindow(FEATURES)
    for count, factor in ((300, 1.0), (150, 3.0)):
        for _ in range(count):
            window.ended(request(rng, terms=late(factor)(rng)))
    changed = checks(window.snapshot(), State.BAD)["error transfer/split"]
    assert "before" in changed.says
    assert "before" not in checks(snapshot(terms=late(3.0)), State.BAD)["error transfer/split"].says


def test_models_that_are_not_fed_are_told() -> None:
    unfed = msgspec.structs.replace(snapshot(), evidence={"ttft": 400, "transfer": 0})
    assert "transfer" in checks(unfed, State.BAD)["samples"].says


def test_decisions_without_outcomes_are_told() -> None:
    assert "outcomes" in checks(Snapshot(decided=60), State.BAD)
    assert "outcomes" not in checks(Snapshot(decided=60, ended=1), State.BAD)


def test_outcomes_that_stop_coming_are_told_though_all_that_came_was_well() -> None:
    rng, window = random.Random(1), LearningWindow(FEATURES)
    for _ in range(400):
        window.decided()
        window.ended(request(rng))
    for _ in range(999):
        window.decided()
    assert "outcomes" not in checks(window.snapshot(), State.BAD)
    window.decided()
    stopped = window.snapshot()
    assert "learning has stopped" in checks(stopped, State.BAD)["outcomes"].says
    others = [snapshot(seed=n) for n in range(3)]
    assert "outcomes" in checks(total([*others, stopped]), State.BAD)
    window.ended(request(rng))
    assert "outcomes" not in checks(window.snapshot(), State.BAD)


def test_little_is_said_of_few_requests() -> None:
    (only,) = judge(snapshot(30, reason="path_down", missing=("unheard",)))
    assert (only.check, only.state) == ("requests", State.OK)
    assert worst([]) is State.OK


def test_what_is_wrong_with_one_router_does_not_drown_among_others() -> None:
    well = [msgspec.structs.replace(snapshot(seed=n), router=f"r{n}") for n in range(5)]
    ill = msgspec.structs.replace(snapshot(missing=("unheard",)), router="ill")
    first = found([*well, ill])[0]
    assert (first.finding.check, first.finding.state, first.routers) == ("telemetry", State.BAD, ("ill",))
    quiet = [msgspec.structs.replace(snapshot(missing=("no_plugin",)), router=f"q{n}") for n in range(3)]
    alike = [one for one in found([*well, *quiet]) if one.finding.check == "telemetry"]
    assert [one.routers for one in alike] == [("q0", "q1", "q2")]


def test_what_is_too_little_for_one_router_is_seen_in_all_together() -> None:
    few = [msgspec.structs.replace(snapshot(20, n, reason="path_down"), router=f"r{n}") for n in range(4)]
    first = found(few)[0]
    assert (first.finding.check, first.finding.state, first.routers) == ("choice", State.BAD, ())
    assert total(few).window == 80

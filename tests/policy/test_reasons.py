"""One hand-made situation for every reason code."""

from dataclasses import replace

import pytest
from worlds import ask, busy, cluster, link, trio, worker

from kvferry.policy import base
from kvferry.policy.candidates import Candidates
from kvferry.policy.cluster import Cluster, State
from kvferry.policy.decision import Decision, Reason
from kvferry.policy.expected_loss import ExpectedLoss
from kvferry.policy.layout import KVLayout
from kvferry.policy.plan import Mode
from kvferry.policy.predict import predict
from kvferry.policy.request import SLO, Request
from kvferry.policy.worker import Role, Speed, Worker

SPLIT = "split:prefill>decode@mooncake"


def decide(request: Request, world: Cluster | list[Worker], **changes: object) -> Decision:
    return base.make("kvferry").decide(
        request, world if isinstance(world, Cluster) else cluster(world, **changes)
    )


def stalled_trio(decodes: float) -> list[Worker]:
    """Colocated and decode worker run the same batch, near their ITL SLO of 50 ms."""
    load, speed = busy(decodes, 2000.0 * decodes), Speed(decode_base_s=0.040)
    prefill, decode, colocated = trio()
    return [prefill, replace(decode, load=load, speed=speed), replace(colocated, load=load, speed=speed)]


@pytest.mark.parametrize("tokens", [1, 16, 200, 2000])
def test_small_prompt(tokens: int) -> None:
    decision = decide(ask(tokens), trio())
    assert (decision.mode, decision.reason) == (Mode.COLOCATED, Reason.SMALL_PROMPT)
    assert decision.reasons_against == {SPLIT: "small_prompt"}


@pytest.mark.parametrize("tokens", [2048, 30_000])
def test_an_idle_cluster_does_not_pay_for_a_move(tokens: int) -> None:
    decision = decide(ask(tokens), trio())
    assert (decision.mode, decision.reason) == (Mode.COLOCATED, Reason.SLOW_PATH)


def test_short_output() -> None:
    decision = decide(ask(4000, expected_output_tokens=8.0), trio())
    assert (decision.mode, decision.reason) == (Mode.COLOCATED, Reason.SHORT_OUTPUT)


def test_congested_path() -> None:
    world = cluster(trio(load=busy(0, prefill_tokens=3000)))
    assert decide(ask(8000), world).mode is Mode.SPLIT
    world.state.moves[:] = 9
    decision = decide(ask(8000), world)
    assert (decision.mode, decision.reason) == (Mode.COLOCATED, Reason.CONGESTED_PATH)


def test_queue_gain() -> None:
    decision = decide(ask(4000), trio(load=busy(0, prefill_tokens=40_000)))
    assert (decision.mode, decision.reason) == (Mode.SPLIT, Reason.QUEUE_GAIN)


def test_queue_gain_the_other_way_round() -> None:
    prefill, decode, colocated = trio()
    decision = decide(ask(4000), [replace(prefill, load=busy(0, prefill_tokens=40_000)), decode, colocated])
    assert (decision.mode, decision.reason) == (Mode.COLOCATED, Reason.QUEUE_GAIN)


@pytest.mark.parametrize("decodes", [4, 8, 16])
def test_protects_decodes(decodes: int) -> None:
    decision = decide(ask(4000), stalled_trio(decodes))
    assert (decision.mode, decision.reason) == (Mode.SPLIT, Reason.PROTECTS_DECODES)


def test_a_request_for_one_token_stalls_others_no_more_than_another() -> None:
    world = cluster(stalled_trio(4))
    long, short = (predict(ask(4000, expected_output_tokens=n), world).standing for n in (128.0, 1.0))
    assert (short.itls_s[1] == long.itls_s[1]).all()


def test_protects_queue() -> None:
    prefill, decode, colocated = trio(load=busy(0, prefill_tokens=30_000))
    world = cluster([replace(prefill, load=busy(0, prefill_tokens=30_000)), decode, colocated])
    world.state.arrivals_per_s[world.candidates.index["colocated"]] = 20.0
    decision = decide(ask(4000), world)
    assert (decision.mode, decision.reason) == (Mode.SPLIT, Reason.PROTECTS_QUEUE)


def test_faster_prefill() -> None:
    prefill, decode, colocated = trio()
    fast = replace(prefill, speed=Speed(prefill_s_per_token=1 / 80_000))
    decision = decide(ask(8000), [fast, decode, colocated])
    assert (decision.mode, decision.reason) == (Mode.SPLIT, Reason.FASTER_PREFILL)


def test_faster_decode() -> None:
    decision = decide(ask(1000), trio(speed=Speed(decode_base_s=0.060)))
    assert (decision.mode, decision.reason) == (Mode.SPLIT, Reason.FASTER_DECODE)


def test_kv_pressure() -> None:
    decision = decide(
        ask(4000, expected_output_tokens=1000.0), trio(load=busy(1, 99_900), max_total_tokens=100_000)
    )
    assert (decision.mode, decision.reason) == (Mode.SPLIT, Reason.KV_PRESSURE)


def test_no_slot_is_pressure_too() -> None:
    decision = decide(ask(4000, slo=SLO(ttft_s=0.5)), trio(load=busy(20), max_running_requests=16))
    assert (decision.mode, decision.reason) == (Mode.SPLIT, Reason.KV_PRESSURE)


def test_prefix_held() -> None:
    decision = decide(ask(20_000, held_tokens={"colocated": 19_000}), trio())
    assert (decision.mode, decision.reason) == (Mode.COLOCATED, Reason.PREFIX_HELD)
    decision = decide(ask(20_000, held_tokens={"prefill": 19_000}), trio())
    assert (decision.mode, decision.reason) == (Mode.SPLIT, Reason.PREFIX_HELD)


@pytest.mark.parametrize(("tokens", "mode"), [(1000, Mode.COLOCATED), (6000, Mode.SPLIT)])
def test_uncertain_gain(tokens: int, mode: Mode) -> None:
    world = cluster(trio(load=busy(0, prefill_tokens=0.12 * tokens + 100)), beta_low_bytes_per_s=1e9)
    decision = decide(ask(tokens), world)
    assert (decision.mode, decision.reason) == (mode, Reason.UNCERTAIN_GAIN)
    assert decision.safe_rule == "length_threshold(2048)"


@pytest.mark.parametrize(
    ("tokens", "mode", "reason"),
    [(500, Mode.COLOCATED, Reason.SMALL_PROMPT), (6000, Mode.SPLIT, Reason.QUEUE_GAIN)],
)
def test_a_gain_that_is_certain_but_small_is_for_long_prompts_only(
    tokens: int, mode: Mode, reason: Reason
) -> None:
    fleet = trio(load=busy(0, prefill_tokens=0.5 * tokens + 2000))
    # a long answer, over which the queue's hold on its own first tokens spreads
    decision = decide(ask(tokens, slo=SLO(ttft_s=60.0), expected_output_tokens=4000.0), fleet)
    assert (decision.mode, decision.reason) == (mode, reason)
    assert decision.safe_rule == "length_threshold(2048)"
    eager = ExpectedLoss(min_gain=0.0).decide(ask(tokens, slo=SLO(ttft_s=60.0)), cluster(fleet))
    assert eager.mode is Mode.SPLIT


def aged(fleet: list[Worker], **ages_s: float) -> Cluster:
    fleet = [
        replace(each, load=replace(each.load, time_s=100.0 - ages_s.get(each.id, 0.0))) for each in fleet
    ]
    return cluster(fleet, time_s=100.0)


@pytest.mark.parametrize("old", ["colocated", "prefill", "decode"])
@pytest.mark.parametrize(("tokens", "mode"), [(100, Mode.COLOCATED), (4000, Mode.SPLIT)])
def test_stale_load(old: str, tokens: int, mode: Mode) -> None:
    decision = decide(ask(tokens), aged(trio(), **{old: 5.1}))
    assert (decision.mode, decision.reason) == (mode, Reason.STALE_LOAD)
    assert decision.safe_rule == "length_threshold(2048)"
    assert decide(ask(tokens), aged(trio(), **{old: 4.9})).reason is not Reason.STALE_LOAD


def test_a_stale_worker_is_passed_over_where_its_mode_has_a_fresh_one() -> None:
    fleet = [*trio(), worker(Role.COLOCATED, "other")]
    decision = decide(ask(100), aged(fleet, colocated=9.0))
    assert decision.plan.key == "colocated:other"
    assert decision.reason is Reason.SMALL_PROMPT
    assert decision.reasons_against["colocated:colocated"] == "stale_load"
    assert decision.view_age_s == 0.0


def test_old_loads_of_workers_that_no_plan_uses_do_not_matter() -> None:
    dead = worker(Role.COLOCATED, "dead", healthy=False)
    odd = worker(Role.PREFILL, "odd", layout=KVLayout(page_size=64))
    decision = decide(ask(100), aged([*trio(), dead, odd], dead=99.0, odd=99.0))
    assert decision.reason is Reason.SMALL_PROMPT
    assert decision.reasons_against["colocated:dead"] == "worker_down"
    assert decision.reasons_against["split:odd>decode@mooncake"] == "incompatible_layout"


def test_the_age_of_the_view_is_that_of_the_older_of_the_two_workers() -> None:
    decision = base.make("always_split").decide(ask(), aged(trio(), prefill=1.0, decode=3.0, colocated=4.0))
    assert decision.view_age_s == pytest.approx(3.0)


def test_only_option() -> None:
    alone = [worker(Role.COLOCATED)]
    assert decide(ask(), alone).reason is Reason.ONLY_OPTION
    assert decide(ask(), trio()[:2]).reason is Reason.ONLY_OPTION


@pytest.mark.parametrize("policy", ["kvferry", "always_split", "coin(0.5)", "length_threshold(1)"])
def test_incompatible_layout(policy: str) -> None:
    prefill, decode, colocated = trio()
    fleet = [replace(prefill, layout=KVLayout(page_size=64)), decode, colocated]
    decision = base.make(policy).decide(ask(4000), cluster(fleet))
    assert (decision.mode, decision.reason) == (Mode.COLOCATED, Reason.INCOMPATIBLE_LAYOUT)
    assert decision.reasons_against == {SPLIT: "incompatible_layout"}
    assert decision.propensity_mode == 1.0


def test_one_odd_pair_among_good_ones_is_told_but_does_not_decide() -> None:
    odd = worker(Role.PREFILL, "odd", layout=KVLayout(dtype="fp8_e4m3"))
    decision = decide(ask(16), [*trio(), odd])
    assert decision.reason is Reason.SMALL_PROMPT
    assert decision.reasons_against["split:odd>decode@mooncake"] == "incompatible_layout"


def test_no_common_transport_and_no_bootstrap_port_are_incompatible() -> None:
    for change in ({"transports": ("nixl",)}, {"bootstrap_port": None}, {"model": "another"}):
        prefill, decode, colocated = trio()
        decision = decide(ask(4000), [replace(prefill, **change), decode, colocated])
        assert decision.reason is Reason.INCOMPATIBLE_LAYOUT


def test_worker_down() -> None:
    prefill, decode, colocated = trio()
    decision = decide(ask(4000), [replace(prefill, healthy=False), decode, colocated])
    assert (decision.mode, decision.reason) == (Mode.COLOCATED, Reason.WORKER_DOWN)
    decision = decide(ask(16), [prefill, decode, replace(colocated, healthy=False)])
    assert (decision.mode, decision.reason) == (Mode.SPLIT, Reason.WORKER_DOWN)


def test_path_down() -> None:
    table = Candidates.build(trio(), link, down={SPLIT: "three failures in a row"})
    decision = decide(ask(4000), Cluster(table, State.of(table)))
    assert (decision.mode, decision.reason) == (Mode.COLOCATED, Reason.PATH_DOWN)
    assert table.impossible[SPLIT] == (Reason.PATH_DOWN, "three failures in a row")


def test_too_large() -> None:
    decision = decide(ask(4000), trio(max_total_tokens=3000))
    assert (decision.mode, decision.reason) == (Mode.SPLIT, Reason.TOO_LARGE)
    assert decision.reasons_against == {"colocated:colocated": "too_large"}
    decision = decide(ask(4000), trio(context_length=4000))
    assert decision.reason is Reason.TOO_LARGE


def test_too_large_for_all_goes_to_a_worker_that_will_say_so() -> None:
    fleet = [replace(each, context_length=100) for each in trio()]
    assert decide(ask(4000), fleet).mode is Mode.COLOCATED


def test_excluded() -> None:
    world = replace(cluster(trio()), excluded=frozenset(["colocated"]))
    decision = decide(ask(16), world)
    assert (decision.mode, decision.reason) == (Mode.SPLIT, Reason.ONLY_OPTION)
    assert decision.reasons_against == {"colocated:colocated": "excluded"}


def test_lower_score_within_the_mode() -> None:
    decision = decide(ask(16), [*trio(), worker(Role.COLOCATED, "busy", load=busy(40, 1e5))])
    assert decision.plan.key == "colocated:colocated"
    assert decision.reasons_against["colocated:busy"] == "lower_score"


def test_a_rule_names_itself_against_plans_that_scored_better() -> None:
    decision = base.make("always_split").decide(ask(16), cluster(trio()))
    assert decision.reason is Reason.RULE
    assert decision.reasons_against == {"colocated:colocated": "rule"}

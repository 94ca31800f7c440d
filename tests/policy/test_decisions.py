"""Laws that every policy keeps."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from worlds import ask, busy, cluster, clusters, fleets, links, requests, trio, wire, worker

from kvferry.policy import base
from kvferry.policy.candidates import Candidates
from kvferry.policy.cluster import Cluster, State
from kvferry.policy.decision import Decision, NoPlanError, Reason
from kvferry.policy.evaluation import Evaluation
from kvferry.policy.layout import relate
from kvferry.policy.link import Link
from kvferry.policy.plan import Colocated, Mode, Split
from kvferry.policy.request import Request
from kvferry.policy.worker import Role, Speed, Worker

POLICIES = [base.make(name) for name in base.names()]
policies = st.sampled_from(POLICIES)
WANTED = (
    "kvferry always_split always_colocated random_by_workers dynamo_isl_bounding dynamo_isl_or_load "
    "llmd_prefix_threshold aibrix_combined ppd_table pinned_conversation least_load coin length_threshold"
)


def decided(policy: base.Policy, request: Request, world: Cluster) -> Decision | NoPlanError:
    try:
        return policy.decide(request, world)
    except NoPlanError as refusal:
        return refusal


def test_every_public_name_is_there() -> None:
    assert set(WANTED.split()) <= set(base.names())


@given(policies, clusters(), requests, st.sets(st.sampled_from(["prefill0", "decode0", "colocated0"])))
def test_an_impossible_plan_is_never_chosen(
    policy: base.Policy, world: Cluster, request: Request, tried: set[str]
) -> None:
    world = replace(world, excluded=frozenset(tried))
    decision = decided(policy, request, world)
    if isinstance(decision, NoPlanError):
        assert decision.reasons or not world.candidates.workers
        return
    fleet = {each.id: each for each in world.candidates.workers}
    if isinstance(decision.plan, Colocated):
        used = [fleet[decision.plan.worker]]
        assert used[0].can_colocate
    else:
        src, dst = used = [fleet[decision.plan.prefill], fleet[decision.plan.decode]]
        assert (src.role, dst.role) == (Role.PREFILL, Role.DECODE)
        assert relate(src.layout, dst.layout, src.shape).possible
        assert decision.plan.transport in set(src.transports) & set(dst.transports)
        assert src.bootstrap_port is not None
    for each in used:
        assert each.healthy
        assert each.id not in tried


@given(policies, st.data())
def test_a_path_that_is_down_is_never_chosen(policy: base.Policy, data: st.DataObject) -> None:
    table = cluster(trio()).candidates
    every = Candidates.build(
        table.workers, wire([table.links[0]]), down={"split:prefill>decode@mooncake": "x"}
    )
    seed = data.draw(st.integers(0, 2**63))
    decision = policy.decide(ask(seed=seed), Cluster(every, State.of(every)))
    assert decision.plan == Colocated("colocated")
    assert decision.reason is Reason.PATH_DOWN


@given(clusters(), requests, st.integers(0, 6))
def test_a_tried_plan_is_never_chosen_again(world: Cluster, request: Request, first: int) -> None:
    keys = world.candidates.keys
    tried = frozenset(keys[: first % (len(keys) + 1)])
    for policy in POLICIES:
        decision = decided(policy, request, replace(world, excluded=tried))
        if isinstance(decision, Decision):
            assert decision.plan.key not in tried
            assert all(decision.reasons_against[key] == "excluded" for key in tried)
        elif world.candidates.workers:
            assert set(decision.reasons) >= set(tried)


@given(st.sampled_from(list(Role)), st.booleans(), st.booleans(), st.booleans(), requests, policies)
def test_one_worker_decides_or_refuses_by_name(
    role: Role, healthy: bool, local: bool, tried: bool, request: Request, policy: base.Policy
) -> None:
    alone = worker(role, "w", healthy=healthy, local_prefill=local)
    world = replace(cluster([alone]), excluded=frozenset(["w"] if tried else []))
    decision = decided(policy, request, world)
    if healthy and not tried and alone.can_colocate:
        assert isinstance(decision, Decision)
        assert decision.plan == Colocated("w")
        assert decision.reason is Reason.ONLY_OPTION
    else:
        assert isinstance(decision, NoPlanError)
        ((name, reason),) = decision.reasons.items()
        assert "w" in name
        code = reason.split(":")[0]
        if not healthy:
            assert code == "worker_down"
        elif alone.can_colocate:
            assert code == "excluded"
        else:
            assert code == "no_partner"
        assert reason in str(decision)


def test_no_worker_at_all_is_refused() -> None:
    with pytest.raises(NoPlanError, match="no worker is known"):
        base.make("kvferry").decide(ask(), cluster([]))


@given(fleets(), st.lists(links, min_size=3, max_size=3), requests, policies, st.randoms())
def test_the_order_of_workers_does_not_matter(
    fleet: list[Worker], drawn: list[Link], request: Request, policy: base.Policy, random
) -> None:
    shuffled = list(fleet)
    random.shuffle(shuffled)
    one, other = (decided(policy, request, Cluster.of(each, wire(drawn))) for each in (fleet, shuffled))
    if isinstance(one, NoPlanError):
        assert isinstance(other, NoPlanError)
        assert one.reasons == other.reasons
    else:
        assert one == other


@given(clusters(), requests, policies)
def test_the_same_seed_decides_the_same(world: Cluster, request: Request, policy: base.Policy) -> None:
    one, other = decided(policy, request, world), decided(policy, request, world)
    assert one == other if isinstance(one, Decision) else isinstance(other, NoPlanError)


def slowed(link: Link, by: float, later: float) -> Link:
    return replace(
        link,
        alpha_s=link.alpha_s + later,
        beta_bytes_per_s=link.beta_bytes_per_s / by,
        beta_low_bytes_per_s=link.beta_low_bytes_per_s / by,
        gamma_s_per_descriptor=link.gamma_s_per_descriptor * by,
    )


@given(
    fleets(same_layout=True),
    st.lists(links, min_size=3, max_size=3),
    requests,
    st.lists(st.tuples(st.floats(1, 1e4), st.floats(0, 1)), min_size=3, max_size=3),
    st.integers(0, 20),
    st.floats(0, 30),
)
def test_slower_links_never_bring_a_split_back(
    fleet: list[Worker],
    drawn: list[Link],
    request: Request,
    by: list[tuple[float, float]],
    moves: int,
    now: float,
) -> None:
    """Each link is slowed by its own factor, in several steps; the mode only ever turns to colocated."""
    policy = base.make("kvferry")
    was_split = True
    for step in range(4):
        paths = [
            slowed(each, factor**step, step * later) for each, (factor, later) in zip(drawn, by, strict=True)
        ]
        world = Cluster.of(fleet, wire(paths), now)
        world.state.moves[:] = step * moves
        is_split = policy.decide(request, world).mode is Mode.SPLIT
        assert was_split or not is_split
        was_split = is_split


def test_a_slower_link_turns_a_split_to_the_safe_rule_and_then_to_colocated() -> None:
    """The law above would hold for a policy that never splits; this one passes through every stage."""
    fleet = trio(load=busy(4, 4e4), speed=Speed(decode_base_s=0.040))
    seen = []
    for slower in np.geomspace(1, 3000, 200):
        decision = base.make("kvferry").decide(
            ask(8000), Cluster.of(fleet, wire([slowed(LINK, slower, 0.0)]))
        )
        stage = (decision.mode.value, bool(decision.safe_rule))
        if not seen or seen[-1] != stage:
            seen.append(stage)
    assert seen == [("split", False), ("split", True), ("colocated", False)]


LINK = cluster(trio()).candidates.links[0]


@given(clusters(), requests, policies)
def test_a_decision_is_whole(world: Cluster, request: Request, policy: base.Policy) -> None:
    decision = decided(policy, request, world)
    assume(isinstance(decision, Decision))
    table = world.candidates
    chosen = decision.plan.key
    told = decision.reasons_against
    assert set(told) == (set(table.keys) - {chosen}) | set(table.impossible)
    assert set(told.values()) <= {reason.value for reason in Reason}
    assert 0.0 < decision.propensity_plan <= decision.propensity_mode <= 1.0
    assert decision.view_age_s >= 0.0
    assert decision.deadline_s >= max(10.0, 4 * decision.costs.ttft_s.p90)
    scores = [costs.score for _, costs in decision.alternatives]
    assert len(scores) <= 3
    assert chosen not in [plan.key for plan, _ in decision.alternatives]
    evaluation = Evaluation.of(request, world)
    modes = {plan.mode for plan, _ in decision.alternatives} | {decision.mode}
    if evaluation.split.any() and evaluation.colocated.any() and decision.reason is not Reason.ONLY_OPTION:
        assert modes == set(Mode)


@given(clusters(), requests)
def test_kvferry_takes_the_best_plan_of_the_mode_it_chose(world: Cluster, request: Request) -> None:
    world = replace(world, time_s=0.0)
    decision = decided(base.make("kvferry"), request, world)
    assume(isinstance(decision, Decision))
    evaluation = Evaluation.of(request, world)
    split = decision.mode is Mode.SPLIT
    best = evaluation.best_split if split else evaluation.best_colocated
    assert decision.plan == world.candidates.plans[best]
    other = evaluation.best_colocated if split else evaluation.best_split
    if other >= 0 and not decision.safe_rule:
        assert decision.costs.score <= evaluation.scores.total[other]


def test_coin_splits_as_often_as_it_says() -> None:
    world = cluster(trio())
    for share in (0.0, 0.2, 0.7, 1.0):
        policy = base.make(f"coin({share})")
        made = [policy.decide(ask(seed=seed), world) for seed in range(2000)]
        splits = [each for each in made if each.mode is Mode.SPLIT]
        assert len(splits) / 2000 == pytest.approx(share, abs=0.035)
        assert all(each.propensity_mode == pytest.approx(share) for each in splits)
        others = [each for each in made if each.mode is Mode.COLOCATED]
        assert all(each.propensity_mode == pytest.approx(1 - share) for each in others)


def test_random_by_workers_draws_plans_as_often_as_it_says() -> None:
    fleet = [worker(Role.PREFILL, f"p{i}") for i in range(2)]
    fleet += [worker(Role.DECODE, "d"), worker(Role.COLOCATED, "c"), worker(Role.COLOCATED, "e")]
    world = cluster(fleet)
    policy = base.make("random_by_workers")
    made = [policy.decide(ask(seed=seed), world) for seed in range(3000)]
    chance = {each.plan.key: each.propensity_plan for each in made}
    assert sum(chance.values()) == pytest.approx(1.0)
    for key, expected in chance.items():
        assert sum(each.plan.key == key for each in made) / 3000 == pytest.approx(expected, abs=0.035)
    splits = [each for each in made if each.mode is Mode.SPLIT]
    assert all(each.propensity_mode == pytest.approx(3 / 5) for each in splits)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nonsense", "unknown policy 'nonsense': known are aibrix_combined"),
        ("", "unknown policy"),
        ("Coin(0.5)", "unknown policy"),
        ("coin(0.5", "unknown policy"),
        ("coin(2)", "not between 0 and 1"),
        ("length_threshold(-5)", "no length"),
        ("coin(nan)", "finite"),
        ("coin(x)", "could not convert"),
        ("coin(0.5,)", "could not convert"),
        ("coin(0.5,1)", "at most 1 numbers, not 2"),
        ("always_split(1)", "at most 0 numbers, not 1"),
        ("length_threshold(inf)", "finite"),
    ],
)
def test_a_wrong_policy_is_named(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        base.make(spec)
    assert message in str(caught.value)


@pytest.mark.parametrize("spec", ["coin(0.25)", "length_threshold(8192)", "llmd_prefix_threshold(300)"])
def test_a_policy_tells_its_parameters_and_is_made_again_from_them(spec: str) -> None:
    assert base.make(spec).name == spec
    assert base.make(base.make(spec).name) == base.make(spec)


def test_plan_keys_are_distinct() -> None:
    keys = [plan.key for plan in (Colocated("a>b"), Split("a", "b", "nixl"), Split("a", "b", "mooncake"))]
    assert all(one != other for one, other in itertools.combinations(keys, 2))

"""Rules that follow conversations, by what workers hold of a prompt."""

from dataclasses import replace

import pytest
from worlds import ask, busy, cluster, worker

from kvferry.policy import base
from kvferry.policy.cluster import Cluster
from kvferry.policy.decision import Decision
from kvferry.policy.plan import Mode
from kvferry.policy.worker import Role, Worker


def fleet(local: bool = True, **loads: float) -> list[Worker]:
    """Two prefill workers and two decode workers (that prefill locally, or not), and one colocated."""
    made = [worker(Role.PREFILL, name) for name in ("p1", "p2")]
    made += [worker(Role.DECODE, name, local_prefill=local) for name in ("d1", "d2")]
    made.append(worker(Role.COLOCATED, "c1"))
    return [replace(each, load=busy(0, prefill_tokens=loads.get(each.id, 0.0))) for each in made]


def decide(policy: str, world: Cluster, tokens: int = 4000, **request: object) -> Decision:
    return base.make(policy).decide(ask(tokens, **request), world)


@pytest.mark.parametrize("holder", ["d1", "d2", "c1"])
@pytest.mark.parametrize("queued", [0.0, 200_000.0])
def test_a_conversation_stays_where_it_is_however_busy_that_is(holder: str, queued: float) -> None:
    world = cluster(fleet(**{holder: queued}))
    assert decide("pinned_conversation", world, held_tokens={holder: 3000}).plan.key == f"colocated:{holder}"


def test_where_it_cannot_prefill_the_decode_worker_still_keeps_it() -> None:
    decision = decide("pinned_conversation", cluster(fleet(local=False)), held_tokens={"d2": 3000})
    assert decision.mode is Mode.SPLIT
    assert decision.plan.key.endswith(">d2@mooncake")
    decision = decide("pinned_conversation", cluster(fleet(local=False)), held_tokens={"p2": 3000})
    assert decision.plan.key.startswith("split:p2>")


def test_the_worker_that_holds_the_most_has_it() -> None:
    held = {"d1": 2000, "d2": 2500, "p1": 3900}
    assert decide("pinned_conversation", cluster(fleet()), held_tokens=held).plan.key == "colocated:d2"


@pytest.mark.parametrize(("held", "pinned"), [(999, False), (1000, True)])
def test_a_system_prompt_is_no_conversation(held: int, pinned: bool) -> None:
    world = cluster(fleet(c1=100_000.0))
    decision = decide("pinned_conversation", world, held_tokens={"c1": held})
    assert (decision.plan.key == "colocated:c1") == pinned


def test_a_first_turn_goes_where_the_wait_is_least() -> None:
    key = decide("pinned_conversation", cluster(fleet(p1=9e3, p2=9e3, d1=9e3, d2=9e3))).plan.key
    assert key == "colocated:c1"
    key = decide("pinned_conversation", cluster(fleet(p1=9e3, c1=9e3, d1=9e3, d2=9e3))).plan.key
    assert key.startswith("split:p2>")


def test_ppd_splits_first_turns_and_keeps_short_later_ones_where_they_are() -> None:
    world = cluster(fleet())
    assert decide("ppd_table", world).mode is Mode.SPLIT
    assert decide("ppd_table", world, held_tokens={"c1": 999}).mode is Mode.SPLIT
    world.state.arrivals_per_s[:] = 100.0
    for held, mode in ((3489, Mode.COLOCATED), (3488, Mode.SPLIT)):
        decision = decide("ppd_table", world, held_tokens={"d2": held}, expected_output_tokens=10.0)
        assert decision.mode is mode
        assert mode is Mode.SPLIT or decision.plan.key == "colocated:d2"


@pytest.mark.parametrize(
    ("per_worker", "tokens", "held", "output", "mode"),
    [
        (0.4, 4000, 2000, 100, Mode.COLOCATED),  # few requests: nobody to spare
        (0.5, 4000, 2000, 500, Mode.SPLIT),  # four times as much to prefill as to decode
        (0.5, 5000, 3000, 500, Mode.SPLIT),
        (0.5, 5000, 3000, 501, Mode.COLOCATED),  # less than that, and a longer context
        (1.9, 4000, 2000, 2001, Mode.COLOCATED),  # mostly decoding
        (1.9, 20_000, 18_000, 100, Mode.COLOCATED),  # much to move
        (2.0, 20_000, 18_000, 100, Mode.SPLIT),
    ],
)
def test_ppd_asks_its_table_about_the_other_later_turns(
    per_worker: float, tokens: int, held: int, output: float, mode: Mode
) -> None:
    world = cluster(fleet())
    world.state.arrivals_per_s[0] = 3 * per_worker  # three workers decode
    decision = decide("ppd_table", world, tokens, held_tokens={"d1": held}, expected_output_tokens=output)
    assert decision.mode is mode

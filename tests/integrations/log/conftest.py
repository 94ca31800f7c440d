"""Records as a small cluster would write them."""

import random

import msgspec
import pytest
from hypothesis import HealthCheck, settings

from kvferry.integrations.log.codec import write_record
from kvferry.integrations.log.convert import record_of
from kvferry.integrations.log.record import DecisionRecord, Moved, Outcome, Stages
from kvferry.policy.costs import Costs, Estimate
from kvferry.policy.decision import Decision, Reason
from kvferry.policy.plan import Colocated, Plan, Split
from kvferry.policy.request import SLO, Request

# A busy machine is no failure.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

P1, P2, D1, C1 = (f"http://127.0.0.1:{port}" for port in (30001, 30003, 30002, 30000))


def costs(queue: float, prefill: float, transfer: float, score: float, moved: int = 0) -> Costs:
    def around(value: float) -> Estimate:
        return Estimate(value, value * 1.6)

    total = queue + prefill + transfer + 0.004
    return Costs(
        queue_s=around(queue),
        prefill_s=around(prefill),
        transfer_s=around(transfer),
        repack_s=Estimate(0, 0),
        admission_s=Estimate(0.0, 0.012),
        ttft_s=around(total),
        itl_s=around(0.0113),
        harm_s=around(score / 3),
        score=score,
        cautious_score=score * 2,
        moved_bytes=moved,
        descriptors=moved // 65536,
        relation="direct" if moved else "",
        path_class="rdma" if moved else "",
    )


def sample(n: int, seed: int = 0) -> DecisionRecord:
    """Request `n`: long prompts split, short ones stay; one is rescued, one fails, one is cancelled."""
    rng = random.Random(f"{seed}-{n}")
    tokens = rng.choice([16, 200, 900, 4000, 12_000])
    long = tokens > 1000
    split: Plan = Split(P1, D1, "mooncake")
    alone: Plan = Colocated(C1)
    moved = tokens * 131_072
    yes = costs(0.02, tokens / 20_000, moved / 12e9, 0.04, moved)
    no = costs(0.4, tokens / 15_000, 0.0, 0.21)
    other: Plan = Split(P2, D1, "nixl")
    worse = costs(0.9, tokens / 20_000, moved / 1.2e9, 0.5, moved)
    decision = Decision(
        plan=split if long else alone,
        reason=Reason.PROTECTS_DECODES if long else Reason.SMALL_PROMPT,
        costs=yes if long else no,
        policy="expected_loss",
        alternatives=((alone, no) if long else (split, yes), (other, worse)),
        reasons_against={
            (alone if long else split).key: "queue_gain" if long else "small_prompt",
            other.key: "lower_score",
            Split(P1, C1, "nixl").key: "incompatible_layout",
        },
        propensity_mode=0.98,
        propensity_plan=0.97,
        deadline_s=8.0,
        view_age_s=0.231,
    )
    request = Request(
        id=f"{rng.getrandbits(64):016x}",
        model="Qwen/Qwen3-32B",
        prompt_tokens=tokens,
        expected_output_tokens=96.5,
        slo=SLO(2.0, 0.05),
        held_tokens={P1: 64 if long else 0},
        seed=rng.getrandbits(64),
    )
    predicted = decision.costs.ttft_s.p50
    outcome = Outcome(
        ttft_s=round(predicted * rng.uniform(0.7, 1.5), 6),
        itl_s=0.0121,
        e2e_s=round(predicted + 1.2, 6),
        output_tokens=96,
        prompt_tokens=tokens,
        cached_tokens=64 if long else 0,
        stages=Stages(0.003, 0.011, tokens / 21_000, moved / 10e9 if long else None, None, 0.001),
        moved_bytes=moved if long else 0,
        descriptors=moved // 65536 if long else 0,
    )
    if long and n % 2:
        outcome = measured(outcome, moved)
    if n % 10 == 3:
        outcome = Outcome(
            ttft_s=3.4, e2e_s=4.4, output_tokens=96, rescued_from=(decision.plan.key,), served_by=alone.key
        )
    elif n % 10 == 7:
        outcome = Outcome(status="failed", error="decode worker http://127.0.0.1:30002 closed the connection")
    elif n % 10 == 9:
        outcome = Outcome(status="cancelled")
    return record_of(
        request, decision, time_s=1_790_000_000.25 + n, router="router-1", decide_us=87.4,
        endpoint="/v1/chat/completions", stream=bool(n % 2), outcome=outcome,
    )  # fmt: skip


def measured(outcome: Outcome, moved: int) -> Outcome:
    """The same with what the plugins on both workers tell; the stages add up to its end to end time."""
    stages = Stages(0.003, 0.011, 0.12, 0.004, None, 0.001, 0.002, 0.0005, 0.0, 0.0015)
    rest = (outcome.e2e_s or 0.0) - sum(
        getattr(stages, name) or 0.0 for name in stages.__struct_fields__ if name != "decode_s"
    )
    return msgspec.structs.replace(
        outcome,
        stages=msgspec.structs.replace(stages, decode_s=round(rest, 6)),
        moved=Moved("mooncake", 1, 1, 0.001, 0.0, moved / 12e9, moved / 11e9, 1600),
        retractions=1,
        found={"prefill": {"waiting": 2, "used_tokens": 4096}, "decode": {}},
        missing={},
    )


@pytest.fixture(scope="session")
def samples() -> list[DecisionRecord]:
    return [sample(n) for n in range(40)]


@pytest.fixture
def log_file(tmp_path, samples):  # type: ignore[no-untyped-def]
    path = tmp_path / "decisions.jsonl"
    path.write_bytes(b"".join(write_record(record) + b"\n" for record in samples))
    return path

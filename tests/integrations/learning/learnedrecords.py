"""Records of a small made-up cluster, whose predictions are wrong in a way that can be learned."""

import math
import random
from typing import Any

import msgspec

from kvferry.integrations.log.record import Chosen, DecisionRecord, Outcome, Stages, Term, Terms
from kvferry.policy.features import EPSILON_S, FEATURE_SET, FEATURES

START_S = 1.7e9
BYTES_PER_TOKEN = 131_072
SPLIT, ALONE = "split:http://p>http://d@mooncake", "colocated:http://c"


def decided(n: int, **changed: Any) -> DecisionRecord:
    """Request `n`, a second after the one before; every other is split. What is measured is about 1.5 times
    what was predicted of prefill and transfer, and queues grow with the arrivals, which predictions miss."""
    rng = random.Random(n)
    tokens = rng.choice([50, 200, 900, 4000]) + rng.randrange(50)
    arrivals, split = rng.uniform(0.0, 10.0), n % 2 == 1
    moved = tokens * BYTES_PER_TOKEN * split
    said = {
        "queue": 0.004,
        "prefill": 0.01 + tokens / 20_000,
        "transfer": (0.001 + moved / 10e9) * split,
        "itl": 0.01 + tokens * 1e-7,
    }
    said["ttft"] = sum(said.values()) - said["itl"] / 2
    said["admission"] = said["itl"] / 2
    noise = {name: math.exp(rng.gauss(0.0, 0.05)) for name in said}
    queue_s = (0.004 + 0.003 * arrivals) * noise["queue"]
    prefill_s = 1.5 * said["prefill"] * noise["prefill"]
    transfer_s = 1.5 * said["transfer"] * noise["transfer"]
    waited_s = said["admission"] * noise["admission"]
    total_s = queue_s + prefill_s + (transfer_s + waited_s) * split
    itl_s = said["itl"] * 1.2 * noise["itl"]
    stages = Stages(
        ingress_s=0.001,
        queue_s=queue_s - 0.001 - 0.001 * split,
        prefill_s=prefill_s,
        **({"bootstrap_s": 0.001, "transfer_s": transfer_s, "alloc_s": 0.0, "decode_queue_s": waited_s})
        if split
        else {},
    )
    shown = dict.fromkeys(FEATURES, 0.0)
    shown |= {f"log_{name}_s": math.log(seconds + EPSILON_S) for name, seconds in said.items()}
    shown |= {
        "log_prompt_tokens": math.log1p(tokens),
        "log_new_tokens": math.log1p(tokens),
        "log_moved_bytes": math.log1p(moved),
        "pre_arrivals_per_s": arrivals,
        "split": float(split),
        "sequences": 1.0,
    }
    terms = {f"{name}_s": Term(seconds, 1.3 * seconds) for name, seconds in said.items()}
    record = DecisionRecord(
        id=f"{n:024x}",
        time=START_S + n,
        chosen=Chosen(
            plan=SPLIT if split else ALONE,
            mode="split" if split else "colocated",
            prefill="http://p" if split else "http://c",
            decode="http://d" if split else "http://c",
            moved_bytes=moved,
        ),
        reason="queue_gain",
        policy="kvferry",
        model_version="structured",
        terms=Terms(**terms),
        catalogue_transfer_s=0.5 * said["transfer"],
        features=tuple(round(value, 5) for value in shown.values()),
        feature_set=FEATURE_SET,
        outcome=Outcome(
            ttft_s=total_s, itl_s=itl_s, e2e_s=total_s + 50 * itl_s, output_tokens=51, stages=stages
        ),
    )
    return msgspec.structs.replace(record, **changed)


def ended(record: DecisionRecord, **changed: Any) -> DecisionRecord:
    """The same with another outcome."""
    return msgspec.structs.replace(record, outcome=msgspec.structs.replace(record.outcome, **changed))

"""What was measured of each predicted term."""

import numpy as np

from kvferry.integrations.learning.chunk import Bools, Chunk, Floats
from kvferry.integrations.learning.needed import STAGES
from kvferry.policy.correction import TARGETS
from kvferry.policy.features import EPSILON_S

# By how much the stages before the first token may exceed it: it is seen at the door, they in the workers.
SLACK = 0.25
SLACK_S = 0.01


def actuals(chunk: Chunk) -> tuple[Floats, dict[str, Bools]]:
    """[N, 7] seconds for TARGETS, NaN where not known, and why measurements were not believed: reason -> [N].

    Stages as in `integrations.log.record.Stages`; the terms but itl add up to the TTFT, less the way out:

        ttft       as the router saw it
        itl        mean gap; under EPSILON_S tokens came in one burst, which says nothing
        queue      ingress (0 where not measured) + bootstrap (split plans) + queue
        prefill    prefill, where above 0
        transfer   transfer of a split plan: what the prefill did not hide
        repack     repack of a split plan: nobody measures it where the transport does it on the way
        admission  alloc + decode queue of a split plan without retractions; a colocated one waits for KV
                   room in its queue

    A negative stage, or stages before the first token that are longer than the TTFT by more than 25% and
    10 ms, are of clocks that do not agree: then only TTFT and ITL are known.
    """
    stage = dict(zip(STAGES, chunk.stages_s.T, strict=True))
    split = chunk.split
    nowhere = np.full(len(chunk), np.nan)
    bootstrap_s = np.where(split, stage["bootstrap_s"], 0.0)
    queue_s = np.nan_to_num(stage["ingress_s"]) + bootstrap_s + stage["queue_s"]
    admission_s = stage["alloc_s"] + stage["decode_queue_s"]
    terms = {
        "queue": queue_s,
        "prefill": np.where(stage["prefill_s"] > 0.0, stage["prefill_s"], nowhere),
        "transfer": np.where(split, stage["transfer_s"], nowhere),
        "repack": np.where(split, stage["repack_s"], nowhere),
        "admission": np.where(split & ~chunk.retracted, admission_s, nowhere),
    }
    before_s = np.nansum(np.column_stack(list(terms.values())), axis=1)
    doubted = {
        "negative_stage": np.asarray((chunk.stages_s < 0.0).any(axis=1)),
        "stages_longer_than_ttft": before_s > chunk.ttft_s * (1.0 + SLACK) + SLACK_S,
    }
    doubted["stages_longer_than_ttft"] &= ~doubted["negative_stage"]
    unknown = doubted["negative_stage"] | doubted["stages_longer_than_ttft"]
    burst = chunk.itl_s < EPSILON_S
    doubted["itl_of_a_burst"] = burst
    columns = {
        "ttft": chunk.ttft_s,
        "itl": np.where(burst, nowhere, chunk.itl_s),
        **{name: np.where(unknown | ~np.isfinite(values), nowhere, values) for name, values in terms.items()},
    }
    return np.column_stack([columns[name] for name in TARGETS]), doubted

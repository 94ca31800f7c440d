"""Mooncake's traces: JSON lines `timestamp` (ms), `input_length`, `output_length`, `hash_ids`.

A hash id names a block of 512 tokens together with all that stands before it, the last one a part of a
block, which no cache holds as such: it is left out. Format: github.com/kvcache-ai/Mooncake, FAST25-release.
"""

from array import array
from typing import Annotated

import msgspec
import numpy as np

from kvferry.models.workload.base import MAX_NEW_TOKENS, Workload
from kvferry.models.workload.csv_rows import MOST
from kvferry.models.workload.json_lines import read_objects
from kvferry.models.workload.spread import spread, step_of
from kvferry.models.workload.trace_file import TraceError, TraceFile

BLOCK_TOKENS = 512
I64 = 2**63 - 1

Count = Annotated[int, msgspec.Meta(ge=1, le=MOST)]
BlockId = Annotated[int, msgspec.Meta(ge=-I64, le=I64)]


class Line(msgspec.Struct, frozen=True, gc=False):
    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Count
    output_length: Count
    hash_ids: list[BlockId] = []


def read_mooncake(
    trace: TraceFile, *, seed: int = 0, spread_steps: bool = True, block_tokens: int = BLOCK_TOKENS
) -> Workload:
    """All requests in the order of their time stamps, the first at (or within a step of) 0.

    `spread_steps`: where stamps were rounded to steps (the published ones: 3 s), requests are spread
    inside their step, drawn from `seed`. Raises TraceError.
    """
    stamps, prompts, outputs, ids, counts = array("d"), array("q"), array("q"), array("q"), array("q")
    for _, line in read_objects(trace, Line):
        full = line.hash_ids[: line.input_length // block_tokens]
        stamps.append(line.timestamp)
        prompts.append(line.input_length)
        outputs.append(line.output_length)
        ids.extend(full)
        counts.append(len(full))
    if not stamps:
        raise TraceError(f"{trace.path} has no request")
    times_s = np.array(stamps) / 1e3
    workload = Workload(
        name=trace.path.name.split(".")[0],
        arrival_s=np.zeros(len(times_s)),
        prompt_tokens=np.array(prompts),
        output_tokens=np.array(outputs),
        max_new_tokens=np.full(len(times_s), MAX_NEW_TOKENS),
        block_tokens=block_tokens,
        block_ids=np.array(ids, dtype=np.int64),
        block_starts=np.concatenate(([0], np.cumsum(np.array(counts)))),
        session=np.full(len(times_s), -1, dtype=np.int64),
    )
    order = np.argsort(times_s, kind="stable")
    times_s = times_s[order] - times_s[order[0]]
    step_s = step_of(times_s) if spread_steps else 0.0
    if step_s:
        times_s = spread(times_s, step_s, np.random.default_rng(seed))
    return workload.take(order, times_s)

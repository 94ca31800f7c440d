"""kvferry's own decision logs (`kvferry.decision.v1`, one JSON object per request) as a workload.

Logs hold no hashes of prompts: what requests shared is lost, and a replay finds less in prefix caches
than the run did.
"""

from typing import Annotated

import msgspec
import numpy as np

from kvferry.models.workload.base import MAX_NEW_TOKENS, Workload
from kvferry.models.workload.csv_rows import MOST
from kvferry.models.workload.json_lines import read_objects
from kvferry.models.workload.trace_file import TraceError, TraceFile

SCHEMA = "kvferry.decision.v1"
CLUSTER_TABLE = b'{"schema":"kvferry.cluster.'  # so begin lines that decisions refer to
BLOCK_TOKENS = 512

Amount = Annotated[int, msgspec.Meta(ge=0, le=MOST)]


class Facts(msgspec.Struct, frozen=True):
    prompt_tokens: Amount = 0
    max_new_tokens: Amount = 0
    expected_output_tokens: Annotated[float, msgspec.Meta(ge=0, le=MOST)] = 0.0
    sequences: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1


class Outcome(msgspec.Struct, frozen=True):
    status: str = "ok"
    prompt_tokens: Amount | None = None
    output_tokens: Amount | None = None


class Line(msgspec.Struct, frozen=True):
    schema: str
    time: Annotated[float, msgspec.Meta(ge=0)]
    request: Facts
    outcome: Outcome | None = None


def read_decision_log(trace: TraceFile) -> Workload:
    """Requests in the order of their decisions, the first at 0.

    Prompt length is the worker's own count, else the router's. A request that ended early (failed,
    cancelled) or has not ended gets the longer of what came of it and what was expected: it was asked
    for. A request for several sequences becomes as many at the same time, with equal prompts and equal
    shares of the output. Raises TraceError.
    """
    rows: list[tuple[float, int, int, int, int]] = []  # time, prompt, output, limit, sequences
    for number, line in read_objects(trace, Line, CLUSTER_TABLE):
        if line.schema != SCHEMA:
            trace.refuse(number, "schema", line.schema, f"is not {SCHEMA}")
            continue
        facts, outcome = line.request, line.outcome or Outcome(status="open")
        counted = outcome.prompt_tokens if facts.sequences == 1 else None
        prompt = counted or facts.prompt_tokens
        if prompt < 1:
            trace.refuse(number, "request.prompt_tokens", prompt, "must be at least 1")
            continue
        output = -(-(outcome.output_tokens or 0) // facts.sequences)
        if outcome.status != "ok" or not output:
            output = max(output, round(facts.expected_output_tokens))
        output = max(1, output)
        rows.append((line.time, prompt, output, facts.max_new_tokens or MAX_NEW_TOKENS, facts.sequences))
    if not rows:
        raise TraceError(f"{trace.path} has no request")
    rows.sort(key=lambda row: row[0])
    return _workload(trace.path.name.split(".")[0], rows)


def _workload(name: str, rows: list[tuple[float, int, int, int, int]]) -> Workload:
    copies = np.array([row[4] for row in rows])
    blocks: list[list[int]] = []
    named = 0
    for _, prompt, _, _, sequences in rows:
        shared = list(range(named, named + prompt // BLOCK_TOKENS)) if sequences > 1 else []
        named += len(shared)
        blocks += [shared] * sequences
    times_s, prompts, outputs, limits = (
        np.repeat([row[place] for row in rows], copies) for place in range(4)
    )
    return Workload.of(
        name,
        times_s - times_s[0],
        prompts.astype(np.int64),
        outputs.astype(np.int64),
        blocks=blocks,
        block_tokens=BLOCK_TOKENS,
        max_new_tokens=limits.astype(np.int64),
    )

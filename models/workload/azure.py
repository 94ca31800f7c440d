"""Azure's LLM inference traces: CSV with TIMESTAMP, ContextTokens, GeneratedTokens.

Format: github.com/Azure/AzurePublicDataset (2023 with seven decimals, 2024 with a zone). Prompts carry no
hashes: nothing is known to be shared.
"""

from array import array

import numpy as np

from kvferry.models.workload.base import Workload
from kvferry.models.workload.csv_rows import Columns, count, read_rows
from kvferry.models.workload.trace_file import TraceError, TraceFile


def _nanoseconds(text: str) -> int:
    try:
        time = np.datetime64(text.removesuffix("Z").removesuffix("+00:00"), "ns")
    except ValueError:
        raise ValueError("is no time like 2023-11-16 18:15:46.6805900") from None
    if np.isnat(time):
        raise ValueError("is no time")
    return int(time.astype(np.int64))


COLUMNS: Columns = {"TIMESTAMP": _nanoseconds, "ContextTokens": count, "GeneratedTokens": count}


def read_azure(trace: TraceFile) -> Workload:
    """All requests in the order of time, the first at 0. Raises TraceError."""
    stamps, prompts, outputs = array("q"), array("q"), array("q")
    for _, (stamp, prompt, output) in read_rows(trace, COLUMNS):
        stamps.append(stamp)
        prompts.append(prompt)
        outputs.append(output)
    if not stamps:
        raise TraceError(f"{trace.path} has no request")
    times = np.array(stamps)
    order = np.argsort(times, kind="stable")
    return Workload.of(
        trace.path.name.split(".")[0],
        (times[order] - times[order[0]]) / 1e9,
        np.array(prompts)[order],
        np.array(outputs)[order],
    )

"""Azure's LLM inference traces: CSV with TIMESTAMP, ContextTokens, GeneratedTokens.

Format: github.com/Azure/AzurePublicDataset (2023 with seven decimals, 2024 with a zone). Prompts carry no
hashes: nothing is known to be shared.
"""

import re
from array import array

import numpy as np

from kvferry.models.workload.base import Workload
from kvferry.models.workload.csv_rows import Columns, count, read_rows
from kvferry.models.workload.trace_file import TraceError, TraceFile

SHAPE = re.compile(r"(19[789]|20\d|21\d)\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,9})?", re.ASCII)


def _nanoseconds(text: str) -> int:
    text = text.removesuffix("Z").removesuffix("+00:00")
    if not SHAPE.fullmatch(text):
        raise ValueError("is no time (UTC) like 2023-11-16 18:15:46.6805900")
    try:
        time = np.datetime64(text, "ns")
    except ValueError:
        raise ValueError("is no such time") from None
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

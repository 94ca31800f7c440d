"""ServeGen's lengths: 16 quantiles for each client, window of six hours, and field."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from kvferry.models.workload.base import Floats
from kvferry.models.workload.csv_rows import Columns, amount, read_rows
from kvferry.models.workload.trace_file import TraceError, TraceFile

FIELDS = ("input_tokens", "output_tokens")  # a third, reason_ratio, is a part of the output
LEVELS = (0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1)
COLUMNS: Columns = {
    "client": str,
    "t_start_s": amount,
    "field": str,
    **{f"q{level:g}": amount for level in LEVELS},
}


@dataclass(frozen=True, slots=True, eq=False)
class ClientLengths:
    """[windows] starts and, by field, [windows, 16] quantiles."""

    starts_s: Floats
    quantiles: tuple[Floats, Floats]

    def draw(self, times_s: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Prompt and output tokens at those times; before the first window, as in the first."""
        window = np.maximum(0, np.searchsorted(self.starts_s, times_s, side="right") - 1)
        prompt, output = np.empty(len(times_s)), np.empty(len(times_s))
        for drawn, quantiles in ((prompt, self.quantiles[0]), (output, self.quantiles[1])):
            for number in np.unique(window):
                mine = window == number
                drawn[mine] = np.interp(rng.random(int(mine.sum())), LEVELS, quantiles[number])
        return prompt, output


LengthTable = dict[str, ClientLengths]


def read_lengths(trace: TraceFile) -> LengthTable:
    """By client, the windows that have both fields. Raises TraceError, also when there are none."""
    found: dict[str, dict[float, dict[str, list[float]]]] = {}
    for number, (client, start_s, field, *quantiles) in read_rows(trace, COLUMNS):
        if any(low > high for low, high in pairwise(quantiles)):
            trace.refuse(number, "q0 to q1", quantiles, "quantiles fall")
        elif field in FIELDS:
            found.setdefault(client, {}).setdefault(start_s, {})[field] = quantiles
    table: LengthTable = {}
    for client, windows in found.items():
        whole = {start: fields for start, fields in sorted(windows.items()) if len(fields) == len(FIELDS)}
        if whole:
            prompt, output = (np.array([fields[name] for fields in whole.values()]) for name in FIELDS)
            table[client] = ClientLengths(np.array(list(whole)), (prompt, output))
    if not table:
        raise TraceError(f"{trace.path} has no window with both {' and '.join(FIELDS)}")
    return table

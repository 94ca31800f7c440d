"""What the log's own versions, the structured models and a learned one say of requests that have ended."""

import math
from heapq import heappop, heappush

import numpy as np

from kvferry.models.terms.spread import Spread
from kvferry.models.training.rows import F32, Rows
from kvferry.policy.candidates import Floats, Ints
from kvferry.policy.correction import QUANTILES, TARGETS, TERMS, Corrector
from kvferry.policy.features import EPSILON_S

PIECE = 4096
ADAPTED = ("ttft", "itl", "transfer")


def live(rows: Rows) -> F32:
    """[N, 3, 7]: what was predicted at the time, by whatever version decided."""
    if rows.predicted_s is None:
        return np.full((len(rows), len(QUANTILES), len(TARGETS)), np.nan, np.float32)
    return rows.predicted_s


def structured(rows: Rows) -> F32:
    """[N, 3, 7]: the structured medians, which every record has. Their upper quantiles are in those that no
    learned model corrected."""
    out = np.full((len(rows), len(QUANTILES), len(TARGETS)), np.nan, np.float32)
    if rows.predicted_s is not None and rows.corrected is not None:
        out[~rows.corrected] = rows.predicted_s[~rows.corrected]
    out[:, 0] = rows.structured_s
    return out


def learned(rows: Rows, corrector: Corrector) -> tuple[F32, float]:
    """[N, 3, 7]: what decisions with this model would have predicted (`policy.corrected`), and the share of
    the requests that lie where it was trained: for the others its predictions are the structured ones.

    As in a router, upper percentiles of TTFT, ITL and transfer follow what became of the requests before, by
    mode.
    """
    out, inside = structured(rows), 0
    corrected = np.zeros((len(rows), len(TARGETS)), np.bool_)
    for start in range(0, len(rows), PIECE):
        here = slice(start, start + PIECE)
        correction = corrector.correct(np.ascontiguousarray(rows.features[here].T, dtype=np.float64))
        found = np.flatnonzero(correction.inside)
        inside += len(found)
        if len(found):
            logs = correction.quantiles(found.tolist())
            corrected[start + found] = np.isfinite(logs).all(axis=1).T
            out[start + found] = _corrected(rows.structured_s[here][found], out[start + found], logs)
    for name in ADAPTED:
        place = TARGETS.index(name)
        for mode in (False, True):
            _adapt(out[:, :, place], rows, name, np.flatnonzero(corrected[:, place] & (rows.split == mode)))
    return out, inside / max(1, len(rows))


def _adapt(said: F32, rows: Rows, name: str, which: Ints) -> None:
    """Widen upper percentiles, [N, 3] in place, as a router does: by those whose first token had come."""
    actual = rows.actual_s[:, TARGETS.index(name)].tolist()
    ttft = rows.actual_s[:, TARGETS.index("ttft")].tolist()
    more = EPSILON_S if name in TERMS else 0.0
    spread, running = Spread(), list[tuple[float, int]]()
    for place in which[np.argsort(rows.time_s[which], kind="stable")].tolist():
        time_s = float(rows.time_s[place])
        while running and running[0][0] <= time_s:
            ended = heappop(running)[1]
            spread.observe(actual[ended], float(said[ended, 1]))
        wider = (said[place, 1:] + more) * math.exp(spread.wide) - more
        said[place, 1:] = np.maximum(wider, said[place, 0])
        heappush(running, (time_s + (ttft[place] if math.isfinite(ttft[place]) else 0.0), place))


def _corrected(structured_s: F32, before_s: F32, logs: Floats) -> F32:
    """[n, 3, 7], of [7, 3, n] logarithms; `before_s` where the model knows nothing of a term."""
    out = before_s.copy()
    for place, name in enumerate(TARGETS):
        median = structured_s[:, place, None].astype(np.float64)
        more = EPSILON_S if name in TERMS else 0.0
        said = np.maximum.accumulate(np.maximum((median + more) * np.exp(logs[place].T) - more, 0.0), axis=1)
        known = np.isfinite(said).all(axis=1)
        out[known, :, place] = said[known]
    return out

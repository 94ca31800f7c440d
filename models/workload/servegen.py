"""ServeGen's condensed form: what each client sent in each window, as statistics to sample from.

Two CSV files: NAME__rates (client, t_start_s, rate_rps, iat_cv, iat_family; windows of 600 s) and
NAME__lengths_quantiles (client, t_start_s, field, quantiles q0 to q1; windows of 6 h). Source:
github.com/alibaba/ServeGen. Lengths of prompt and answer are drawn apart; nothing is shared.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from kvferry.models.workload.arrivals import FAMILIES, Family, unit_gaps
from kvferry.models.workload.base import Floats, Ints, Workload
from kvferry.models.workload.csv_rows import Columns, amount, read_rows
from kvferry.models.workload.lengths import whole
from kvferry.models.workload.rate_curve import RateCurve
from kvferry.models.workload.servegen_lengths import LengthTable, read_lengths
from kvferry.models.workload.trace_file import TraceError, TraceFile

WINDOW_S = 600.0
RATES, LENGTHS = "__rates", "__lengths_quantiles"
DEFAULT_DURATION_S = 3600.0

Window = tuple[float, float, float, Family]  # start, rate, cv, family of gaps


def _family(text: str) -> Family:
    for family in FAMILIES:
        if text.lower() in (family, {"poisson": "exponential"}.get(family)):
            return family
    raise ValueError(f"is none of {', '.join(FAMILIES)}")


def _spread(text: str) -> float:
    if (value := amount(text)) <= 0:
        raise ValueError("must be above 0")
    return value


COLUMNS: Columns = {
    "client": str,
    "t_start_s": amount,
    "rate_rps": amount,
    "iat_cv": _spread,
    "iat_family": _family,
}


def read_servegen(
    trace: TraceFile,
    *,
    seed: int = 0,
    start_s: float = 0.0,
    duration_s: float | None = None,
    rate_rps: float | None = None,
) -> Workload:
    """Requests of [start, start + duration) of the trace (default: its first hour from the start on).

    `rate_rps` scales all clients alike to that mean rate. Each client sends exactly what its windows
    say in sum (a part of a request decides by chance), at gaps of its family and coefficient of
    variation, in step with its changing rate. Raises TraceError.
    """
    rates_file, lengths_file = companions(trace.path)
    clients = _clients(replace(trace, path=rates_file))
    lengths = read_lengths(replace(trace, path=lengths_file))
    duration_s = DEFAULT_DURATION_S if duration_s is None else duration_s
    curves = {client: _curve(windows, start_s, start_s + duration_s) for client, windows in clients.items()}
    mass = sum(curve.mass for curve in curves.values())
    if mass <= 0:
        raise TraceError(f"{rates_file} has no request from {start_s:g} s to {start_s + duration_s:g} s")
    scale = 1.0 if rate_rps is None else rate_rps * duration_s / mass
    rng = np.random.default_rng(seed)
    times, senders = [], []
    for number, (client, curve) in enumerate(curves.items()):
        times.append(_arrivals(curve, clients[client], scale, rng))
        senders.append(np.full(len(times[-1]), number))
    arrival_s, sender = np.concatenate(times), np.concatenate(senders)
    order = np.argsort(arrival_s, kind="stable")
    arrival_s, sender = arrival_s[order], sender[order]
    if not len(arrival_s):
        raise TraceError(f"{rates_file}: no request in {duration_s:g} s at {rate_rps} requests/s")
    weights = np.array([curve.mass for curve in curves.values()])
    prompt, output = _lengths(lengths, list(curves), weights, sender, arrival_s, rng)
    return Workload.of(rates_file.name.split("__")[0], arrival_s - start_s, prompt, output)


def companions(path: Path) -> tuple[Path, Path]:
    """The two files, given either. TraceError when its name is neither's."""
    if RATES in path.name:
        return path, path.with_name(path.name.replace(RATES, LENGTHS))
    if LENGTHS in path.name:
        return path.with_name(path.name.replace(LENGTHS, RATES)), path
    raise TraceError(f"{path}: ServeGen's files are named NAME{RATES}.csv and NAME{LENGTHS}.csv")


def _clients(trace: TraceFile) -> dict[str, list[Window]]:
    clients: dict[str, list[Window]] = {}
    for _, (client, start_s, rate, cv, family) in read_rows(trace, COLUMNS):
        clients.setdefault(client, []).append((start_s, rate, cv, family))
    for windows in clients.values():
        windows.sort(key=lambda window: window[0])
    return clients


def _curve(windows: list[Window], start_s: float, end_s: float) -> RateCurve:
    """The client's rate, 0 where it has no window."""
    starts = np.array([window[0] for window in windows])
    edges = np.unique(np.clip(np.concatenate((starts, starts + WINDOW_S, [start_s, end_s])), start_s, end_s))
    held = np.searchsorted(starts, edges[:-1], side="right") - 1
    inside = (held >= 0) & (edges[:-1] < starts[held] + WINDOW_S)
    return RateCurve(edges, np.where(inside, np.array([window[1] for window in windows])[held], 0.0))


def _arrivals(curve: RateCurve, windows: list[Window], scale: float, rng: np.random.Generator) -> Floats:
    """As many as the curve expects, spaced in its operational time by gaps of the windows' kinds."""
    mass = curve.mass
    count = int(mass * scale + rng.random())
    if not count:
        return np.empty(0)
    expected = curve.times_s((np.arange(count + 1) + 0.5) * mass / (count + 1))
    held = np.maximum(0, np.searchsorted([window[0] for window in windows], expected, side="right") - 1)
    gaps = np.empty(count + 1)
    for family in FAMILIES:
        chosen = np.array([windows[place][3] == family for place in held])
        gaps[chosen] = unit_gaps(family, np.array([windows[place][2] for place in held[chosen]]), rng)
    reached = np.cumsum(gaps)
    if not reached[-1] > 0:  # gaps so uneven that all were rounded to nothing
        return np.sort(curve.times_s(rng.uniform(0, mass, count)))
    return curve.times_s(np.minimum(reached[:-1] / reached[-1], 1 - 1e-12) * mass)


def _lengths(
    table: LengthTable,
    clients: list[str],
    weights: Floats,
    sender: Ints,
    time_s: Floats,
    rng: np.random.Generator,
) -> tuple[Ints, Ints]:
    """A client of unknown lengths borrows those of another, drawn by how much the others send."""
    known = np.array([client in table for client in clients])
    lent = weights * known
    if not lent.sum():
        known_names = list(table)
        clients, known = clients + known_names, np.concatenate((known, np.ones(len(known_names), dtype=bool)))
        lent = np.concatenate((lent, np.ones(len(known_names))))
    borrowers = np.flatnonzero(~known[sender])
    source = sender.copy()
    source[borrowers] = rng.choice(len(clients), len(borrowers), p=lent / lent.sum())
    prompt, output = np.ones(len(sender)), np.ones(len(sender))
    for number in np.unique(source):
        mine = np.flatnonzero(source == number)
        prompt[mine], output[mine] = table[clients[number]].draw(time_s[mine], rng)
    return np.maximum(1, whole(prompt)), np.maximum(1, whole(output))

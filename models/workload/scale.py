"""The same traffic at another rate, in halves, and mixed."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kvferry.models.workload.base import Workload
from kvferry.models.workload.merge import dense, merge

# No gaps that anybody measured: nothing to scale, and scaling them would overflow.
AT_ONCE_S = 1e-9


def at_rate(workload: Workload, rate_rps: float, duration_s: float | None = None) -> Workload:
    """The first rate * duration requests, their time compressed or stretched to fill the duration.

    All gaps change by one factor, so bursts keep their shape (and waits within conversations shrink
    too). The count is exact. Without a duration: all requests once. Too short a workload is repeated,
    each time with block ids and sessions of its own: with the same ones every repetition would be found
    in the prefix caches whole, which no traffic is. ValueError when nothing would be left.
    """
    if not len(workload):
        raise ValueError(f"workload {workload.name!r} is empty: it has no rate to scale")
    if not 0 < rate_rps < float("inf"):
        raise ValueError(f"a rate cannot be {rate_rps} requests/s")
    duration_s = len(workload) / rate_rps if duration_s is None else duration_s
    count = round(rate_rps * duration_s) if 0 < duration_s < float("inf") else 0
    if count < 1:
        raise ValueError(f"no request in {duration_s} s at {rate_rps} requests/s")
    long = repeated(workload, count + 1)
    span_s = float(long.arrival_s[count])
    part = long.take(np.arange(count), long.arrival_s[:count])
    if span_s < AT_ONCE_S:
        return part
    return replace(part, arrival_s=part.arrival_s * (duration_s / span_s))


def repeated(workload: Workload, count: int) -> Workload:
    """At least `count` requests: the workload as often as that needs, one mean gap between."""
    passes = -(-count // len(workload))
    if passes == 1:
        return workload
    size = len(workload)
    gap_s = workload.duration_s / max(1, size - 1) or 1.0
    number = np.repeat(np.arange(passes), size)
    rows = np.tile(np.arange(size), passes)
    long = workload.take(rows, workload.arrival_s[rows] + number * (workload.duration_s + gap_s))
    blocks, named = dense(workload.block_ids)
    session, talks = dense(np.concatenate(([-1], workload.session)))
    session = session[1:] - 1  # -1 is the least, hence 0
    return replace(
        long,
        block_ids=(blocks + np.arange(passes)[:, None] * named).ravel(),
        session=np.where(session >= 0, session + np.arange(passes)[:, None] * talks, -1).ravel(),
    )


def mix(
    parts: Sequence[tuple[Workload, float]],
    rate_rps: float,
    duration_s: float | None = None,
    name: str | None = None,
) -> Workload:
    """Several workloads at once, their requests in proportion to the weights, nothing shared between.

    Each is scaled by `at_rate`. Without a duration: as long as no part has to be repeated.
    """
    if not parts or min(weight for _, weight in parts) <= 0:
        raise ValueError("a mix needs parts, each with a weight above 0")
    whole = sum(weight for _, weight in parts)
    rates = [rate_rps * weight / whole for _, weight in parts]
    if duration_s is None and rate_rps > 0:
        duration_s = min(len(part) / rate for (part, _), rate in zip(parts, rates, strict=True))
    scaled = [at_rate(part, rate, duration_s) for (part, _), rate in zip(parts, rates, strict=True)]
    return merge(name or "+".join(f"{weight:g}x{part.name}" for part, weight in parts), scaled)


def first_half(workload: Workload) -> Workload:
    """Requests of the first half of the time, for tuning."""
    return workload.between(0.0, workload.duration_s / 2)


def second_half(workload: Workload) -> Workload:
    """The other requests, for reporting; time begins at the middle. Caches begin empty there."""
    return workload.between(workload.duration_s / 2, float("inf"))

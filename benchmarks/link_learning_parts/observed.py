"""What a router's log says of a link that was degraded and recovered."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from link_learning_parts.phases import Phases

from kvferry.integrations.log.errors import transfer_error
from kvferry.integrations.log.record import DecisionRecord

KNOWN_MOVES = 30
# What is predicted for a move, over what was before: noticed. Moves take ten times as long.
NOTICED = 3.0
# So many decisions in a row for other links: routing has moved off. Half as much as before in as many that
# follow: it is back.
AWAY = 10
BACK = 0.5


@dataclass(frozen=True, slots=True)
class NewLink:
    """Errors are |predicted / actual - 1| of transfer times: the median of the first KNOWN_MOVES moves, and
    of those after; infinite where there were none. Of the degraded link: before that."""

    mbit_per_s: float
    moves: int
    error_first: float
    error_after: float


@dataclass(frozen=True, slots=True)
class Degraded:
    """`share` of decisions for the link before; requests over it until it was thought NOTICED times as slow;
    requests on all links until AWAY decisions in a row were for others; over it after that, until it was
    whole; seconds from then until it got BACK of its share again, and what is in that window. Requests that
    only explored count as tries and as requests over it, but not as a decision for it or for others."""

    share: float
    noticed: float
    left: float
    tries: int
    back_s: float


class _Decision(NamedTuple):
    time_s: float
    over: bool
    explored: bool
    believed: float


def new_links(records: Iterable[DecisionRecord], phases: Phases) -> list[NewLink]:
    """In the order of `phases.hosts`."""
    kept = sorted(records, key=lambda record: record.time)
    found = []
    for host, rate in zip(phases.hosts, phases.mbit_per_s, strict=True):
        end_s = phases.slow_s if host == phases.hosts[0] else phases.end_s
        errors = list(_errors((one for one in kept if one.time < end_s), host))
        first, after = errors[:KNOWN_MOVES], errors[KNOWN_MOVES:]
        found.append(NewLink(rate, len(errors), _median(first), _median(after)))
    return found


def degraded(records: Iterable[DecisionRecord], phases: Phases) -> Degraded:
    """Of the first of `phases.hosts`. In the first third it was not known: that is not its usual share."""
    host = phases.hosts[0]
    seen = sorted(_Decision(*_decision(record, host)) for record in records)
    settled_s = seen[0].time_s + (phases.slow_s - seen[0].time_s) / 3.0 if seen else math.inf
    before = [one for one in seen if settled_s <= one.time_s < phases.slow_s]
    during = [one for one in seen if phases.slow_s <= one.time_s < phases.again_s]
    after = [one for one in seen if one.time_s >= phases.again_s and not one.explored]
    share = float(np.mean([one.over for one in before if not one.explored] or [False]))
    usual = _median([one.believed for one in before])
    place = next((n for n, one in enumerate(during) if one.believed >= NOTICED * usual), None)
    noticed = math.inf if place is None else sum(one.over for one in during[:place])
    left = _left(during)
    tries = sum(one.over for one in during[int(left) :]) if math.isfinite(left) else 0
    back_s = next(
        (
            one.time_s - phases.again_s
            for start, one in enumerate(after[: max(0, len(after) - AWAY + 1)])
            if one.over and np.mean([each.over for each in after[start : start + AWAY]]) >= BACK * share
        ),
        math.inf,
    )
    return Degraded(share, noticed, left, tries, back_s)


def _left(during: Sequence[_Decision]) -> float:
    away = 0
    for place, one in enumerate(during):
        away = away if one.explored else 0 if one.over else away + 1
        if away == AWAY:
            run = [n for n, each in enumerate(during[: place + 1]) if not each.explored][-AWAY:]
            return float(run[0])
    return math.inf


def _errors(records: Iterable[DecisionRecord], host: str) -> Iterator[float]:
    for record in records:
        if _from(record.chosen.prefill, host) and (error := transfer_error(record)) is not None:
            yield abs(error)


def _decision(record: DecisionRecord, host: str) -> tuple[float, bool, bool, float]:
    """When, whether over the link, whether to explore, and what a byte was thought to take on it."""
    over = record.chosen.mode == "split" and _from(record.chosen.prefill, host)
    plans = [(record.chosen.moved_bytes, record.terms)] if over else []
    plans += [
        (other.moved_bytes, other.terms)
        for other in record.alternatives
        if _from(other.plan.removeprefix("split:"), host)
    ]
    believed = min((terms.transfer_s.p50 / moved for moved, terms in plans if moved), default=math.nan)
    return record.time, over, record.explored, believed


def _from(url: str, host: str) -> bool:
    return url.startswith(f"http://{host}:")


def _median(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return float(np.median(known)) if known else math.inf

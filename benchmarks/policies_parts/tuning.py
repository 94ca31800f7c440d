"""Settings are chosen on the first half of each trace, by goodput, before anything is reported."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from policies_parts import rules
from policies_parts.contest import Contest, Scenario
from policies_parts.task import METRICS, Task

from kvferry.models.simulator.cell import Result

Found = Mapping[str, Result]
Name = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Choice:
    """`settings`: by scenario, objective, metric and rule; `single`: by metric, the one setting of all that
    was best over all cells; `chunks`: the challenger's, by workload, objective and metric."""

    settings: dict[tuple[Name, int, str, str], str] = field(default_factory=dict)
    single: dict[str, str] = field(default_factory=dict)
    chunks: dict[tuple[str, int, str], int] = field(default_factory=dict)


def tuning_tasks(contest: Contest) -> list[Task]:
    """Everything that has to be run before the choice."""
    tasks: list[Task] = []
    for slo in range(len(contest.slos)):
        for scenario in contest.challengers:
            for chunk in contest.chunks:
                tasks += contest.runs(scenario.with_chunk(chunk), rules.OWN, slo, tuning=True)[0]
        for scenario in contest.scenarios:
            for settings in contest.tuned.values():
                for setting in settings:
                    tasks += contest.runs(scenario, setting, slo, tuning=True)[0]
    return tasks


def choose(contest: Contest, found: Found) -> Choice:
    """The best settings by goodput. Of equal ones the one that missed the next rate by least, then the
    first."""
    choice = Choice()
    merits: dict[tuple[str, str], list[float]] = {}
    for slo in range(len(contest.slos)):
        for metric in METRICS:
            for scenario in contest.challengers:
                chunks = {
                    c: _merit(contest, found, scenario.with_chunk(c), rules.OWN, slo, metric)
                    for c in contest.chunks
                }
                choice.chunks[scenario.source.name, slo, metric] = max(chunks, key=lambda c: chunks[c])
            for scenario in contest.scenarios:
                for family, settings in contest.tuned.items():
                    merit = {s: _merit(contest, found, scenario, s, slo, metric) for s in settings}
                    choice.settings[scenario.name, slo, metric, family] = max(merit, key=lambda s: merit[s])
                    for setting, (rate_rps, _) in merit.items():
                        merits.setdefault((metric, setting), []).append(rate_rps)
    floor = contest.rule.start_rps / 2
    for metric in METRICS:
        means = {s: geometric_mean(rates, floor) for (m, s), rates in merits.items() if m == metric}
        if means:
            choice.single[metric] = max(means, key=lambda s: means[s])
    return choice


def geometric_mean(values: Sequence[float], floor: float = 0.0) -> float:
    """Of values, none taken for less than `floor`; NaN for none."""
    if not values:
        return math.nan
    return math.exp(sum(math.log(max(value, floor, 1e-9)) for value in values) / len(values))


def _merit(
    contest: Contest, found: Found, scenario: Scenario, policy: str, slo: int, metric: str
) -> tuple[float, float]:
    (task,), row = contest.runs(scenario, policy, slo, tuning=True)
    result, which = found[task.key], METRICS.index(metric)
    rate_rps = float(result["goodput"][row][which])
    above = [shares[row][which] for rate, shares in result["points"] if rate > rate_rps]
    return rate_rps, (above[0] or 0.0) if above else 0.0

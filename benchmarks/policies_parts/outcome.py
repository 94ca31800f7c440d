"""From runs to what is compared: one entry per cell, and means over all of them."""

import math
from typing import Any

from policies_parts import rules
from policies_parts.contest import Contest, Scenario
from policies_parts.task import METRICS, Task
from policies_parts.tuning import Choice, Found, geometric_mean

Entry = dict[str, Any]
STALE_S = 1.0


def entrants(contest: Contest, choice: Choice, scenario: Scenario, slo: int) -> list[str]:
    """The policies that are reported in a cell; tuned rules with the settings chosen for it, and the settings
    that were best over all cells."""
    chosen = [
        choice.settings[scenario.name, slo, metric, family] for metric in METRICS for family in contest.tuned
    ]
    return list(dict.fromkeys([rules.OWN, *contest.untuned, *chosen, *choice.single.values()]))


def report_tasks(contest: Contest, choice: Choice) -> list[Task]:
    """Everything that is reported."""
    tasks: list[Task] = []
    for slo in range(len(contest.slos)):
        for scenario in contest.scenarios:
            for policy in entrants(contest, choice, scenario, slo):
                tasks += contest.runs(scenario, policy, slo)[0]
            tasks += contest.runs(scenario.stale(STALE_S), rules.OWN, slo)[0]
        for scenario in contest.challengers:
            for metric in METRICS:
                chunk = choice.chunks[scenario.source.name, slo, metric]
                tasks += contest.runs(scenario.with_chunk(chunk), rules.OWN, slo)[0]
    return tasks


def outcome(contest: Contest, choice: Choice, found: Found) -> Entry:
    """Everything that is known at the end, as JSON has it."""
    cells = [
        _cell(contest, choice, found, scenario, slo)
        for scenario in contest.scenarios
        for slo in range(len(contest.slos))
    ]
    return {
        "grid": contest.name,
        "seeds": list(contest.seeds),
        "rate_step": contest.rule.step,
        "durations_s": {scenario.source.name: scenario.duration_s for scenario in contest.scenarios},
        "cells": cells,
        "means": {metric: _means(contest, cells, metric) for metric in METRICS},
    }


def _cell(contest: Contest, choice: Choice, found: Found, scenario: Scenario, slo: int) -> Entry:
    policies = {
        policy: _seen(contest, found, scenario, policy, slo)
        for policy in entrants(contest, choice, scenario, slo)
    }
    entry: Entry = {
        **dict(zip(("workload", "path", "pool"), scenario.name, strict=True)),
        "slo": contest.slos[slo][0],
        "policies": policies,
        "stale": _seen(contest, found, scenario.stale(STALE_S), rules.OWN, slo),
    }
    floor = contest.rule.start_rps / 2
    challenger = contest.challenger(scenario)
    for metric in METRICS:
        tuned = [choice.settings[scenario.name, slo, metric, family] for family in contest.tuned]
        fixed = [name for name in contest.untuned if rules.is_fixed(name)] + tuned
        aware = [name for name in contest.untuned if not rules.is_fixed(name)]
        own = policies[rules.OWN][metric]
        entry[metric] = {
            rules.OWN: own,
            "fixed": _best(fixed, policies, metric),
            "load_aware": _best(aware, policies, metric),
            "stale": entry["stale"][metric],
        }
        if challenger is not None:
            chunk = choice.chunks[challenger.source.name, slo, metric]
            seen = _seen(contest, found, challenger.with_chunk(chunk), rules.OWN, slo)
            entry[metric]["challenger"] = {"policy": f"chunk {chunk}", "goodput_rps": seen[metric]}
        for rival in ("fixed", "load_aware", "challenger"):
            if entry[metric].get(rival):
                entry[metric][rival]["ratio"] = _ratio(own, entry[metric][rival]["goodput_rps"], floor)
        entry[metric]["stale_ratio"] = _ratio(entry["stale"][metric], own, floor)
    return entry


def _seen(contest: Contest, found: Found, scenario: Scenario, policy: str, slo: int) -> Entry:
    tasks, row = contest.runs(scenario, policy, slo)
    results = [found[task.key] for task in tasks]
    rates = {
        metric: [result["goodput"][row][which] for result in results] for which, metric in enumerate(METRICS)
    }
    shares = [result["split_share"][row] for result in results if result["split_share"][row] is not None]
    return {
        **{metric: sum(values) / len(values) for metric, values in rates.items()},
        "split_share": sum(shares) / len(shares) if shares else None,
        "by_seed": rates,
    }


def _best(names: list[str], policies: dict[str, Entry], metric: str) -> Entry | None:
    if not names:
        return None
    name = max(names, key=lambda name: policies[name][metric])
    return {"policy": name, "goodput_rps": policies[name][metric]}


def _ratio(own: float, other: float, floor: float) -> float:
    return max(own, floor) / max(other, floor)


def _means(contest: Contest, cells: list[Entry], metric: str) -> Entry:
    """Geometric means of kvferry's goodput over others'. A goodput of 0 counts as half the lowest rate."""
    floor = contest.rule.start_rps / 2
    own = [cell[metric][rules.OWN] for cell in cells]
    everywhere = [name for name in cells[0]["policies"] if all(name in cell["policies"] for cell in cells)]
    over = {
        name: geometric_mean(
            [
                _ratio(mine, cell["policies"][name][metric], floor)
                for mine, cell in zip(own, cells, strict=True)
            ]
        )
        for name in everywhere
    }
    singles = {name: ratio for name, ratio in over.items() if rules.is_fixed(name)}
    single = min(singles, key=lambda name: singles[name])
    rival = {
        kind: [cell[metric][kind]["ratio"] for cell in cells if cell[metric].get(kind)]
        for kind in ("fixed", "load_aware", "challenger")
    }
    colocated: dict[str, Entry] = {}
    for cell in cells:
        if cell[metric].get("challenger"):
            place = colocated.setdefault(f"{cell['workload']}, {cell['slo']}", {"ratios": []})
            place["ratios"].append(cell[metric]["challenger"]["ratio"])
    for place in colocated.values():
        place.update(mean=geometric_mean(place["ratios"]), least=min(place["ratios"]))
    return {
        "over_best_fixed": geometric_mean(rival["fixed"]),
        "least_over_best_fixed": min(rival["fixed"]),
        "cells_under_0.97": sum(ratio < 0.97 for ratio in rival["fixed"]),
        "best_single": single,
        "over_best_single": singles[single],
        "over_best_load_aware": _or_none(geometric_mean(rival["load_aware"])),
        "over_challenger": colocated,
        "stale_cost": 1.0 - geometric_mean([cell[metric]["stale_ratio"] for cell in cells]),
        "over_each": over,
    }


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value

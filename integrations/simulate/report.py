"""Finished cells as what is printed: per scenario and policy, seeds pooled, regret against the oracle."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvferry.integrations.simulate.engine import Failure, Outcome
from kvferry.models.simulator.cell import Cell
from kvferry.models.simulator.metrics import Figures, pool, with_regret

POINT = ("seed", "rate_rps", "slo_attainment", "fair_attainment")
Labels = tuple[tuple[str, str | int | float | None], ...]


def scenarios(cells: Sequence[Cell], outcomes: Mapping[str, Outcome], seed: int = 0) -> list[dict[str, Any]]:
    """One object per scenario, in the cells' order: its labels and `policies`, as in `policies_of`."""
    grouped: dict[Labels, list[Cell]] = {}
    for cell in cells:
        grouped.setdefault(_without(cell, "policy", "seed"), []).append(cell)
    return [
        {**dict(labels), "policies": policies_of(mine, outcomes, seed)} for labels, mine in grouped.items()
    ]


def policies_of(
    cells: Sequence[Cell], outcomes: Mapping[str, Outcome], seed: int = 0
) -> dict[str, dict[str, Any]]:
    """Pooled figures by policy; cells that failed are left out, and a policy none of whose cells ended.

    A cell that looked for the goodput adds to those of its policy and seed that ran one rate; alone, its
    other figures are those of the last rate that passed. Its rates are under `points`.
    """
    rows: dict[str, dict[int, Figures]] = {}
    points: dict[str, list[dict[str, Any]]] = {}
    for cell in sorted(cells, key=lambda cell: cell.scan is not None):
        outcome = outcomes.get(cell.key)
        if outcome is None or isinstance(outcome, Failure):
            continue
        row = rows.setdefault(cell.policy, {})
        found: Figures = outcome["figures"]
        if cell.scan is None:
            row[cell.seed] = found
        else:
            row[cell.seed] = {**found, **row.get(cell.seed, {}), **_goodputs(found)}
            points.setdefault(cell.policy, []).extend(
                dict(zip(POINT, (cell.seed, *point), strict=True)) for point in outcome["points"]
            )
    same_rate = all(cell.scan is None for cell in cells) or any(cell.scan is None for cell in cells)
    best = rows.get("oracle", {}) if same_rate else {}
    order = dict.fromkeys(cell.policy for cell in cells)
    return {
        policy: {
            **pool([with_regret(row, best.get(number)) for number, row in rows[policy].items()], seed),
            **({"points": points[policy]} if policy in points else {}),
        }
        for policy in order
        if policy in rows
    }


def _goodputs(found: Figures) -> Figures:
    return {name: found[name] for name in ("goodput_rps", "fair_goodput_rps")}


def _without(cell: Cell, *names: str) -> Labels:
    return tuple((name, value) for name, value in cell.labels if name not in names)

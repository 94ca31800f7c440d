"""The outcome as Markdown."""

from collections.abc import Iterable
from typing import Any

from policies_parts import rules

Entry = dict[str, Any]
LOSES_UNDER = 0.97
HEAD = (
    "workload",
    "path",
    "pool",
    "ITL SLO",
    "kvferry",
    "split",
    "best fixed rule",
    "ratio",
    "class-fair: kvferry",
    "best fixed rule",
    "ratio",
    "best load-aware rule",
    "ratio",
    "8 colocated",
    "ratio",
    "fluid bound",
)


def markdown(outcome: Entry) -> str:
    """Cells where kvferry loses, worst first; then the others, and what they come to together."""
    cells = outcome["cells"]
    losing = sorted((cell for cell in cells if _least(cell) < LOSES_UNDER), key=_least)
    others = [cell for cell in cells if _least(cell) >= LOSES_UNDER]
    lasting = ", ".join(f"{name} {lasts_s:g} s" for name, lasts_s in outcome["durations_s"].items())
    said = (
        f"Goodput averaged over {len(outcome['seeds'])} seeds; rates {outcome['rate_step']:.3g} times apart; "
        f"arrivals simulated: {lasting}. Settings in brackets were tuned on the first half of each trace, "
        "for the cell and the metric. Bound: all served (a tenth refused at no cost)."
    )
    parts = [
        f"## {len(cells)} cells of the {outcome['grid']} grid, goodput in requests/s",
        said,
        f"### Cells where kvferry has under {LOSES_UNDER} of the best fixed rule: {len(losing)}",
        _table(HEAD, (_row(cell) for cell in losing)) if losing else "None.",
        "### The other cells",
        _table(HEAD, (_row(cell) for cell in others)) if others else "None.",
        "### Together",
        _table(("geometric mean unless said otherwise", "asked", "plain", "class-fair"), _together(outcome)),
        "### kvferry over each policy that ran with one setting in all cells",
        _table(("policy", "plain", "class-fair"), _each(outcome)),
    ]
    return "\n\n".join(parts) + "\n"


def _least(cell: Entry) -> float:
    return float(min(cell["plain"]["fixed"]["ratio"], cell["fair"]["fixed"]["ratio"]))


def _row(cell: Entry) -> list[str]:
    plain, fair = cell["plain"], cell["fair"]
    share = cell["policies"][rules.OWN]["split_share"]
    return [
        *(cell[key] for key in ("workload", "path", "pool", "slo")),
        f"{plain[rules.OWN]:.1f}",
        "" if share is None else f"{share:.0%}",
        *_rival(plain.get("fixed")),
        f"{fair[rules.OWN]:.1f}",
        *_rival(fair.get("fixed")),
        *_rival(plain.get("load_aware")),
        *_rival(plain.get("challenger")),
        _bound(cell.get("bound_rps")),
    ]


def _rival(rival: Entry | None) -> tuple[str, str]:
    if not rival:
        return "", ""
    return f"{rival['goodput_rps']:.1f} {rival['policy']}", f"{rival['ratio']:.2f}"


def _bound(bound: Entry | None) -> str:
    return f"{bound['all']:.1f} ({bound['tenth_lost']:.1f})" if bound else ""


def _together(outcome: Entry) -> Iterable[list[str]]:
    plain, fair = outcome["means"]["plain"], outcome["means"]["fair"]

    def row(told: str, asked: str, key: str, form: str = ".2f") -> list[str]:
        return [
            told,
            asked,
            *("" if means[key] is None else f"{means[key]:{form}}" for means in (plain, fair)),
        ]

    yield row("over the best fixed rule of each cell", ">= 1.20", "over_best_fixed")
    yield [
        "over the best single fixed rule",
        ">= 1.5",
        *(f"{means['over_best_single']:.2f} ({means['best_single']})" for means in (plain, fair)),
    ]
    yield row("least ratio to the best fixed rule of a cell", ">= 0.97", "least_over_best_fixed")
    yield row("cells under 0.97", "0", "cells_under_0.97", "d")
    yield row("over the best load-aware public rule of each cell", "", "over_best_load_aware")
    yield row("lost by loads that are 1 s old", "<= 5%", "stale_cost", ".1%")
    for place, seen in plain["over_challenger"].items():
        pair = (seen, fair["over_challenger"][place])
        yield [
            f"over 8 colocated workers: {place}",
            _asked(place),
            *(f"{each['mean']:.2f} (least {each['least']:.2f})" for each in pair),
        ]


def _asked(place: str) -> str:
    return {"azure, 20 ms": ">= 1.3", "azure, 50 ms": ">= 0.97"}.get(place, "")


def _each(outcome: Entry) -> Iterable[list[str]]:
    plain, fair = (outcome["means"][metric]["over_each"] for metric in ("plain", "fair"))
    for name in sorted(plain, key=lambda name: (plain[name], name)):
        if name != rules.OWN:
            yield [name, f"{plain[name]:.2f}", f"{fair[name]:.2f}"]


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

"""Simulated policies as tables of at most 80 columns."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from kvferry.integrations.cli.units import human_bytes, human_seconds


def policies_table(policies: Mapping[str, Mapping[str, Any]], title: str) -> Table:
    """A row per policy, the best first. Columns that nobody filled are left out."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("policy", overflow="fold")
    with_goodput = any(row["goodput_rps"] is not None for row in policies.values())
    with_regret = any(row["regret_mean"] is not None for row in policies.values())
    columns = {
        **(
            {"good-\nput/s": _goodput("goodput_rps"), "\nfair": _goodput("fair_goodput_rps")}
            if with_goodput
            else {}
        ),
        "in\nSLO": _column("slo_attainment", ".1%"),
        "TTFT\np50": _seconds("ttft_p50_s"),
        "TTFT\np99": _seconds("ttft_p99_s"),
        "ITL\np50": _seconds("itl_p50_s"),
        "ITL\np99": _seconds("itl_p99_s"),
        "split": _column("split_share", ".0%"),
        **({} if with_goodput else {"moved": _bytes}),
        **({"regret": _column("regret_mean", "+.3f")} if with_regret else {}),
    }
    for header in columns:
        table.add_column(header, justify="right", no_wrap=True)
    for name, row in sorted(policies.items(), key=lambda item: -_rank(item[1])):
        table.add_row(name, *(show(row) for show in columns.values()))
    return table


def notes(policies: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """What the table's words mean, and what it hides, in lines of at most 80 columns."""
    rows = list(policies.values())
    if not any(row["requests"] for row in rows):
        yield "no request arrived in that time"
    if any(row["goodput_rps"] is not None for row in rows):
        yield "goodput: highest rate with 90% in SLO; fair: and 80% in each quartile of prompt"
        yield "length."
    if any(row["regret_mean"] is not None for row in rows):
        yield "regret: mean SLO loss (1 for a request out of SLO) less that of the oracle."
    for name, row in policies.items():
        told = [f"{row[key]:g} {key}" for key in ("failed", "rescued", "retractions") if row[key]]
        if told:
            yield f"{name}: {', '.join(told)}" + (" (mean of seeds)" if row["seeds"] > 1 else "")
    for name, row in policies.items():
        if interval := row["intervals"].get("goodput_rps"):
            low, high = interval
            yield f"{name}: goodput {low:.3g} to {high:.3g} (95%, {row['seeds']} seeds)"
        elif interval := row["intervals"].get("slo_attainment"):
            yield f"{name}: in SLO {interval[0]:.1%} to {interval[1]:.1%} (95%, {row['seeds']} seeds)"


def scenarios_table(found: Sequence[Mapping[str, Any]], title: str) -> Table:
    """A row per scenario and policy, the best of each scenario first."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("scenario", overflow="fold", ratio=3)
    table.add_column("policy", overflow="fold", ratio=2)
    for name in ("goodput", "fair", "in SLO", "split"):
        table.add_column(name, justify="right", no_wrap=True)
    for scenario in found:
        label = ", ".join(_told(key, value) for key, value in scenario.items() if key != "policies")
        ordered = sorted(scenario["policies"].items(), key=lambda item: -_rank(item[1]))
        for place, (name, row) in enumerate(ordered):
            table.add_row(
                label if place == 0 else "",
                name,
                _goodput("goodput_rps")(row),
                _goodput("fair_goodput_rps")(row),
                _number(row["slo_attainment"], ".1%"),
                _number(row["split_share"], ".0%"),
                end_section=place == len(ordered) - 1,
            )
    return table


def _told(key: str, value: object) -> str:
    return {"rate_rps": f"{value}/s", "chunk_tokens": f"chunks of {value}"}.get(key, str(value))


def _rank(row: Mapping[str, Any]) -> float:
    goodput, met = row["goodput_rps"], row["slo_attainment"]
    return float((goodput or 0.0) + 1e-3 * (met or 0.0) if goodput is not None else met or 0.0)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _column(key: str, form: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: _number(row[key], form)


def _goodput(key: str) -> Callable[[Mapping[str, Any]], str]:
    def show(row: Mapping[str, Any]) -> str:
        if row[key] == 0 and row.get("points"):
            return f"<{min(point['rate_rps'] for point in row['points']):.3g}"
        return _number(row[key], ".3g")

    return show


def _seconds(key: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: "-" if row[key] is None else human_seconds(row[key]).replace(" ", "")


def _bytes(row: Mapping[str, Any]) -> str:
    return "-" if row["moved_bytes"] is None else human_bytes(row["moved_bytes"]).replace(" ", "")

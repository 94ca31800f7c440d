"""`logs stats` as tables of 80 columns."""

from typing import Any

from rich import box
from rich.table import Table

from kvferry.integrations.log import text


def stats_tables(figures: dict[str, Any]) -> list[Table]:
    """From what `stats` returns: the totals, the reasons, and the policies when there are several."""
    tables = [_totals(figures), _reasons(figures)]
    if len(figures["by_policy"]) > 1:
        tables.append(_policies(figures["by_policy"]))
    return tables


def _totals(figures: dict[str, Any]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, value in (
        ("requests", str(figures["requests"])),
        ("split", text.percent(figures["split_share"])),
        ("rescued", str(figures["rescued"])),
        ("failed", str(figures["failed"])),
        ("median error of TTFT", text.percent(figures["ttft_error_median"])),
        ("median error of transfer", text.percent(figures["transfer_error_median"])),
        ("TTFT within its p90", text.percent(figures["coverage_p90"])),
    ):
        table.add_row(name, value)
    return table


def _reasons(figures: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("reason")
    table.add_column("requests", justify="right")
    table.add_column("share", justify="right")
    total = sum(figures["reasons"].values())
    for code, count in figures["reasons"].items():
        table.add_row(code, str(count), text.percent(count / total))
    return table


def _policies(by_policy: dict[str, dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("policy")
    for name in ("requests", "split", "rescued", "failed", "TTFT error", "within p90"):
        table.add_column(name, justify="right")
    for policy, figures in by_policy.items():
        table.add_row(
            policy,
            str(figures["requests"]),
            text.percent(figures["split_share"]),
            str(figures["rescued"]),
            str(figures["failed"]),
            text.percent(figures["ttft_error_median"]),
            text.percent(figures["coverage_p90"]),
        )
    return table

"""The demo's table: every request, where it went, and why."""

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median

from rich.table import Table

from kvferry.integrations.cli.units import human_seconds
from kvferry.integrations.log.record import DecisionRecord

LIVE_ROWS = 12


def table_of(records: Sequence[DecisionRecord], last: int | None = LIVE_ROWS) -> Table:
    """At most 80 columns; `last` rows, or all of them by prompt length."""
    table = Table(title="requests as they were decided", title_style="bold", padding=(0, 0, 0, 1))
    for name, justify in (("id", "left"), ("prompt", "right"), ("output", "right"), ("ran", "left")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    table.add_column("because", justify="left")
    table.add_column("TTFT", justify="right")
    table.add_column("predicted", justify="right")
    rows = records[-last:] if last else sorted(records, key=lambda record: record.request.prompt_tokens)
    for record in rows:
        outcome = record.outcome
        mode: str = record.chosen.mode
        if outcome is not None and outcome.rescued_from:
            mode += " (rescued)"
        table.add_row(
            record.id[:8],
            str(record.request.prompt_tokens),
            str(outcome.output_tokens if outcome else ""),
            f"[cyan]{mode}[/cyan]" if record.chosen.mode == "split" else mode,
            record.reason,
            human_seconds(outcome.ttft_s) if outcome and outcome.ttft_s else "-",
            human_seconds(record.terms.ttft_s.p50),
        )
    return table


def summary_of(records: Sequence[DecisionRecord]) -> Iterator[str]:
    """A line per mode: how many, how long, why."""
    for mode in ("colocated", "split"):
        mine = [record for record in records if record.chosen.mode == mode]
        if not mine:
            yield f"{mode}: none"
            continue
        tokens = int(median(record.request.prompt_tokens for record in mine))
        reasons = ", ".join(
            f"{reason} {count}" for reason, count in Counter(r.reason for r in mine).most_common()
        )
        yield f"{mode}: {len(mine)} requests, median prompt {tokens} tokens; {reasons}"

"""What was predicted and what was measured, side by side, and what nobody measured."""

from collections.abc import Iterator

from rich import box
from rich.table import Table

from kvferry.integrations.log import text
from kvferry.integrations.log.errors import comparable
from kvferry.integrations.log.record import DecisionRecord, Outcome, Stages

# A row of the table: its name, the predicted term if there is one, and the stages that it is made of.
_ROWS = (
    ("given up", None, ("rescue_s",)),
    ("way in", None, ("ingress_s",)),
    ("queue", "queue_s", ("bootstrap_s", "queue_s")),
    ("prefill", "prefill_s", ("prefill_s",)),
    ("transfer", "transfer_s", ("transfer_s",)),
    ("repack", "repack_s", ("repack_s",)),
    ("admission", "admission_s", ("alloc_s", "decode_queue_s")),
    ("decode", None, ("decode_s",)),
    ("way out", None, ("egress_s",)),
)
_WHY = {
    "no_plugin": "no plugin on {}",
    "telemetry_off": "telemetry is off on {}",
    "unheard": "nothing was heard from the plugin on {}",
    "no_record": "no record came in time from {}",
    "unnamed": "several samples of one prompt have ids that only {} knows",
}
_PREFILL = {
    "bootstrap_s": "bootstrap",
    "queue_s": "queue",
    "prefill_s": "prefill",
    "transfer_s": "transfer",
    "moved_bytes": "bytes moved",
    "descriptors": "descriptors",
}
_DECODE = {"alloc_s": "alloc", "decode_queue_s": "decode queue", "decode_s": "decode"}
_ALONE = {"queue_s": "queue", "prefill_s": "prefill", "decode_s": "decode"}


def stages_table(record: DecisionRecord, outcome: Outcome) -> Table | None:
    """Predicted and measured terms in the order of the request's way; None when nothing was measured.

    A rescued request went another way than the predicted one: then only what was measured is shown.
    """
    if not any(_value(outcome.stages, name) for name in outcome.stages.__struct_fields__):
        return None
    same = comparable(record) is not None
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("stage")
    table.add_column("predicted p50 / p90", justify="right")
    table.add_column("measured", justify="right")
    table.add_column("of which")
    for name, term, parts in _ROWS:
        known = {part: value for part in parts if (value := _value(outcome.stages, part)) is not None}
        predicted = getattr(record.terms, term) if term and same else None
        if not known and (predicted is None or not predicted.p90):
            continue
        table.add_row(
            name,
            f"{text.duration(predicted.p50)} / {text.duration(predicted.p90)}" if predicted else "",
            text.duration(sum(known.values())) if known else "-",
            ", ".join(f"{_named(part)} {text.duration(value)}" for part, value in known.items())
            if len(parts) > 1
            else "",
        )
    if outcome.e2e_s and outcome.stages.decode_s is not None:
        total = sum(_value(outcome.stages, name) or 0.0 for name in outcome.stages.__struct_fields__)
        share = f"{text.percent(total / outcome.e2e_s)} of {text.duration(outcome.e2e_s)} end to end"
        table.add_row("sum", "", text.duration(total), share, style="bold")
    return table


def late_for(record: DecisionRecord) -> str | None:
    """Where the time went by which the first token came later than its predicted median; None where it came
    within its 90th percentile, or the stages do not account for half of that."""
    outcome = comparable(record)
    if outcome is None or outcome.ttft_s is None or outcome.ttft_s <= record.terms.ttft_s.p90:
        return None
    late_s = outcome.ttft_s - record.terms.ttft_s.p50
    over = []
    for name, term, parts in _ROWS[:-2]:
        known = [value for part in parts if (value := _value(outcome.stages, part)) is not None]
        predicted_s = getattr(record.terms, term).p50 if term else 0.0
        if known and sum(known) > predicted_s:
            over.append((sum(known) - predicted_s, name, sum(known), predicted_s))
    over.sort(reverse=True)
    told, of_s = [], 0.0
    for more_s, name, measured_s, predicted_s in over:
        told.append(f"{name} {text.duration(measured_s)} where {text.duration(predicted_s)} was predicted")
        of_s += more_s
        if of_s >= 0.5 * late_s:
            return f"late by {text.duration(late_s)}: " + ", ".join(told)
    return None


def not_known(record: DecisionRecord, outcome: Outcome) -> Iterator[str]:
    """A sentence for each worker whose telemetry is missing: why, and what is not known for it."""
    served = outcome.served_by or record.chosen.plan
    prefill, _, decode = served.removeprefix("split:").rpartition("@")[0].partition(">")
    for worker, why in outcome.missing.items():
        fields = _ALONE
        if served.startswith("split:"):
            fields = (_PREFILL if worker == prefill else {}) | (_DECODE if worker == decode else {})
        names = [
            name
            for field, name in fields.items()
            if (_value(outcome.stages, field) if field.endswith("_s") else getattr(outcome, field)) is None
        ]
        told = f": {', '.join(names)} not known" if names else ""
        yield _WHY.get(why, why + " on {}").format(worker) + told


def _value(stages: Stages, name: str) -> float | None:
    value: float | None = getattr(stages, name)
    return value


def _named(part: str) -> str:
    return part.removesuffix("_s").replace("_", " ")

"""One decision in full: every candidate the record holds, every term, and what then happened."""

from collections.abc import Callable, Iterator

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvferry.integrations.cli.units import human_bytes
from kvferry.integrations.log import text
from kvferry.integrations.log.errors import covered, ttft_error
from kvferry.integrations.log.meaning import against, chosen_for
from kvferry.integrations.log.record import DecisionRecord, Outcome, Terms
from kvferry.integrations.log.stages import late_for, not_known, stages_table
from kvferry.policy.decision import STRUCTURED

_TERMS = (
    ("queue", "queue_s"),
    ("prefill", "prefill_s"),
    ("transfer", "transfer_s"),
    ("repack", "repack_s"),
    ("admission", "admission_s"),
    ("TTFT", "ttft_s"),
    ("ITL", "itl_s"),
    ("harm", "harm_s"),
)
_LISTED = 12


def explain(record: DecisionRecord) -> Group:
    """To be printed by rich, in 80 columns or more."""
    return Group(*_parts(record))


def show(record: DecisionRecord, console: Console) -> None:
    console.print(explain(record), soft_wrap=False)


def _parts(record: DecisionRecord) -> Iterator[RenderableType]:
    request = record.request
    when = text.clock(record.time, "%Y-%m-%d %H:%M:%S %Z")
    yield _line("request", Text.assemble((record.id, "bold"), f"  {when}"))
    sequences = f"{request.sequences} sequences" if request.sequences != 1 else ""
    how = [part for part in (request.endpoint, "streamed" if request.stream else "", sequences) if part]
    yield _line("", f"{request.model}{': ' if how else ''}{', '.join(how)}")
    yield _line(
        "",
        f"{request.prompt_tokens} prompt tokens ({request.cached_tokens} cached), up to "
        f"{request.max_new_tokens} new ({request.expected_output_tokens:.0f} expected)",
    )
    slo = f"SLO: TTFT {text.duration(request.slo.ttft_s)}, ITL {text.duration(request.slo.itl_s)}"
    yield _line("", slo)
    arm = record.mode if record.arm in ("", record.mode) else f"{record.arm} arm"
    yield _line("policy", f"{record.policy} ({record.model_version}), {arm}, router {record.router}")
    yield _line("", f"decided in {record.decide_us:.0f} us, on loads {text.duration(record.view_age_s)} old")
    yield _line("chosen", text.chosen(record.chosen))
    yield _line("", f"{record.reason}{_means(chosen_for, record.reason)}")
    if record.safe_rule:
        yield _line("", f"safe rule: {record.safe_rule}")
    yield from _corrected(record)
    yield _line(
        "",
        f"probability of the mode {record.propensity.mode:.3g}, of the plan {record.propensity.plan:.3g}; "
        f"rescue after {text.duration(record.deadline_s)}",
    )
    yield _terms(record)
    for letter, alternative in zip("BCDEFGH", record.alternatives, strict=False):
        yield _line(letter, f"{alternative.plan}{_against(record, alternative.plan)}", width=3)
    yield from _others(record)
    yield from _happened(record)


def _corrected(record: DecisionRecord) -> Iterator[RenderableType]:
    """What the learned model changed, or why it did not."""
    if record.fallback:
        yield _line("", f"not corrected by the model: {record.fallback}")
    elif record.model_version not in ("", STRUCTURED):
        before = (text.duration(record.structured_ttft_s), text.duration(record.structured_itl_s))
        yield _line("", f"without {record.model_version}: TTFT {before[0]}, ITL {before[1]}")


def _line(label: str, body: str | Text, width: int = 9) -> Table:
    """A labelled paragraph whose further lines stay under its first."""
    grid = Table.grid()
    grid.add_column(width=width, no_wrap=True)
    grid.add_column()
    grid.add_row(Text(label, style="bold"), Text(body) if isinstance(body, str) else body)
    return grid


def _terms(record: DecisionRecord) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, title_justify="left")
    table.add_column("p50 / p90")
    columns = [("chosen", record.terms, record.chosen.score, record.chosen.moved_bytes)]
    columns += [
        (letter, other.terms, other.score, other.moved_bytes)
        for letter, other in zip("BCDEFGH", record.alternatives, strict=False)
    ]
    for title, *_ in columns:
        table.add_column(title, justify="right", no_wrap=True)
    for name, field in _TERMS:
        cells = [_both(terms, field) for _, terms, _, _ in columns]
        table.add_row(name, *cells, style="bold" if name == "TTFT" else "")
    table.add_row("score", *(f"{score:.4g}" for _, _, score, _ in columns))
    table.add_row("moved", *(human_bytes(moved) if moved else "-" for *_, moved in columns))
    return table


def _both(terms: Terms, field: str) -> str:
    term = getattr(terms, field)
    if not term.p50 and not term.p90:
        return "-"
    return f"{text.duration(term.p50)} / {text.duration(term.p90)}"


def _against(record: DecisionRecord, plan: str) -> str:
    code = record.reasons_against.get(plan)
    return f": {code}{_means(against, code)}" if code else ""


def _others(record: DecisionRecord) -> Iterator[RenderableType]:
    shown = {alternative.plan for alternative in record.alternatives}
    by_code: dict[str, list[str]] = {}
    for plan, code in record.reasons_against.items():
        if plan not in shown:
            by_code.setdefault(code, []).append(plan)
    for code, plans in by_code.items():
        yield _line("-", f"{code}{_means(against, code)}:", width=3)
        for plan in plans[:_LISTED]:
            yield _line("", plan, width=5)
        if len(plans) > _LISTED:
            yield _line("", f"and {len(plans) - _LISTED} more", width=5)
    if record.alternatives or by_code:
        yield Text()


def _happened(record: DecisionRecord) -> Iterator[RenderableType]:
    outcome = record.outcome
    if outcome is None:
        yield _line("outcome", "none yet")
        return
    failed = outcome.error if outcome.error and outcome.status != "ok" else ""
    yield _line("outcome", outcome.status + (f": {failed}" if failed else ""))
    for place, plan in enumerate(outcome.rescued_from, start=1):
        why = f": {outcome.error}" if outcome.error and place == len(outcome.rescued_from) else ""
        yield _line("", f"gave up {plan}{why}")
    if outcome.served_by:
        yield _line("", f"served by {outcome.served_by}")
    if (error := ttft_error(record)) is not None:
        within = "within" if covered(record) else "above"
        predicted = text.duration(record.terms.ttft_s.p50)
        yield _line(
            "",
            f"TTFT {text.duration(outcome.ttft_s)}, predicted {predicted} "
            f"({text.percent(error, signed=True)}), {within} its p90",
        )
        if (late := late_for(record)) is not None:
            yield _line("", Text(late, style="bold"))
    elif outcome.ttft_s is not None:
        yield _line("", f"TTFT {text.duration(outcome.ttft_s)}")
    for line in _figures(outcome):
        yield _line("", line)
    for sentence in not_known(record, outcome):
        yield _line("", sentence)
    if table := stages_table(record, outcome):
        yield table


def _figures(outcome: Outcome) -> Iterator[str]:
    parts = []
    if outcome.itl_s is not None:
        parts.append(f"ITL {text.duration(outcome.itl_s)}")
    if outcome.e2e_s is not None:
        parts.append(f"end to end {text.duration(outcome.e2e_s)}")
    if outcome.output_tokens is not None:
        parts.append(f"{outcome.output_tokens} tokens out")
    if outcome.prompt_tokens is not None:
        cached = f", {outcome.cached_tokens} cached" if outcome.cached_tokens is not None else ""
        parts.append(f"{outcome.prompt_tokens} in{cached}")
    if parts:
        yield "; ".join(parts)
    if outcome.moved_bytes:
        pieces = f" in {outcome.descriptors} descriptors" if outcome.descriptors is not None else ""
        yield f"moved {human_bytes(outcome.moved_bytes)}{pieces}"
    if moved := outcome.moved:
        yield (
            f"{moved.transport}: chunks {moved.chunks}, calls {moved.calls}; "
            f"waited {text.duration(moved.wait_s)}, built {text.duration(moved.build_s)}, "
            f"busy {text.duration(moved.busy_s)}"
        )
    if outcome.retractions:
        yield f"retractions: {outcome.retractions} (decoding interrupted for want of KV room)"
    for role, queues in outcome.found.items():
        what = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in queues.items())
        yield f"found by the request on the {role} worker: {what or 'nothing'}"


def _means(meaning: Callable[[str], str], code: str) -> str:
    return f" ({meaning(code)})" if meaning(code) else ""

"""One line per request, for `kvferry logs tail`: fixed columns, so that lines can follow for ever."""

from kvferry.integrations.log import text
from kvferry.integrations.log.errors import ttft_error
from kvferry.integrations.log.record import DecisionRecord

# time, id, tokens, choice, reason, predicted, actual, error
_WIDTHS = (8, 9, 6, 17, 16, 6, 6, 5)
WIDTH = sum(_WIDTHS) + len(_WIDTHS) - 1


def header(width: int = 80) -> str:
    return _line(("time", "id", "tokens", "choice", "reason", "pred.", "actual", "error"), width)


def row(record: DecisionRecord, width: int = 80) -> str:
    """`pred.` and `actual` are TTFT; `error` is + where the prediction was too long."""
    outcome = record.outcome
    rescued = outcome is not None and bool(outcome.rescued_from)
    served = outcome.served_by if outcome is not None and outcome.served_by else record.chosen.plan
    return _line(
        (
            text.clock(record.time),
            record.id,
            str((outcome.prompt_tokens if outcome else None) or record.request.prompt_tokens),
            text.plan(served, _WIDTHS[3] + max(0, min(width - WIDTH, 48 - _WIDTHS[3]))),
            "rescued" if rescued else record.reason,
            text.duration(record.terms.ttft_s.p50),
            text.status(record),
            text.percent(ttft_error(record), signed=True),
        ),
        width,
    )


def _line(cells: tuple[str, ...], width: int) -> str:
    widths = list(_WIDTHS)
    spare = max(0, width - WIDTH)
    for column, most in ((3, 48), (1, 36), (4, 20)):  # what a wide terminal gives room to
        extra = min(spare, most - widths[column])
        widths[column] += extra
        spare -= extra
    return " ".join(
        _fit(cell, size, right=column in (2, 5, 6, 7))
        for column, (cell, size) in enumerate(zip(cells, widths, strict=True))
    ).rstrip()


def _fit(cell: str, size: int, *, right: bool) -> str:
    cell = "".join(character if character.isprintable() else "?" for character in cell)
    if len(cell) > size:
        cell = cell[: size - 1] + "…"
    return cell.rjust(size) if right else cell.ljust(size)

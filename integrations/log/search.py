"""Find one request in a log."""

from collections.abc import Iterable

from kvferry.integrations.log.record import DecisionRecord
from kvferry.integrations.log.source import SourceError


def find(records: Iterable[DecisionRecord], wanted: str) -> DecisionRecord:
    """The record whose id is `wanted`, or begins with it when only one does; what acted before a shadow.

    Raises SourceError when there is none, or when several begin so.
    """
    wanted = wanted.rstrip("…")  # as `logs tail` prints it
    exact: DecisionRecord | None = None
    begins: dict[str, DecisionRecord] = {}
    for record in records:
        if record.id == wanted:
            if record.mode != "shadow":
                return record
            exact = exact or record
        elif record.id.startswith(wanted) and len(begins) < 6:
            known = begins.get(record.id)
            if known is None or known.mode == "shadow":
                begins[record.id] = record
    if exact is not None:
        return exact
    if not begins:
        raise SourceError(f"no request '{wanted}' in this log")
    if len(begins) > 1:
        few = ", ".join(list(begins)[:5])
        more = ", ..." if len(begins) > 5 else ""
        raise SourceError(f"'{wanted}' begins the ids of several requests: {few}{more}", usage=True)
    return next(iter(begins.values()))

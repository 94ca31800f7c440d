"""How far predictions were from what happened."""

from kvferry.integrations.log.record import DecisionRecord, Outcome


def comparable(record: DecisionRecord) -> Outcome | None:
    """The outcome, when it is one of the very plan that was predicted: answered, and not rescued."""
    outcome = record.outcome
    if outcome is None or outcome.status != "ok" or record.mode == "shadow":
        return None
    served = outcome.served_by or record.chosen.plan
    return outcome if served == record.chosen.plan and not outcome.rescued_from else None


def relative(predicted: float, actual: float | None) -> float | None:
    """(predicted - actual) / actual: +0.1 is predicted 10% too long. None without a positive actual."""
    if actual is None or actual <= 0:
        return None
    return (predicted - actual) / actual


def ttft_error(record: DecisionRecord) -> float | None:
    """Relative error of the predicted median TTFT."""
    outcome = comparable(record)
    return relative(record.terms.ttft_s.p50, outcome.ttft_s) if outcome is not None else None


def transfer_error(record: DecisionRecord) -> float | None:
    """Relative error of the predicted median transfer; None for a colocated request."""
    outcome = comparable(record)
    if outcome is None or record.chosen.mode != "split":
        return None
    return relative(record.terms.transfer_s.p50, outcome.stages.transfer_s)


def covered(record: DecisionRecord) -> bool | None:
    """Whether the TTFT was at or under its predicted 90th percentile."""
    outcome = comparable(record)
    if outcome is None or outcome.ttft_s is None:
        return None
    return outcome.ttft_s <= record.terms.ttft_s.p90

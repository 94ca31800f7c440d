"""From a request's record to what the health of learning is judged by."""

from collections.abc import Iterator

from kvferry.integrations.log.errors import comparable
from kvferry.integrations.log.record import NEVER_S, DecisionRecord, Outcome, Stages, Term
from kvferry.models.health.seen import Pair, Seen
from kvferry.policy.decision import STRUCTURED


def seen_of(record: DecisionRecord) -> Seen:
    """`record` with its outcome; without one, of a request that failed."""
    outcome = record.outcome or Outcome(status="failed")
    split = record.chosen.mode == "split"
    return Seen(
        mode=record.chosen.mode,
        reason=record.reason,
        safe_rule=bool(record.safe_rule),
        learned=record.model_version not in ("", STRUCTURED) or bool(record.fallback),
        fallback=record.fallback,
        rescued=bool(outcome.rescued_from),
        failed=outcome.status == "failed",
        features=record.features,
        terms=dict(_pairs(record)),
        inputs=dict(_inputs(outcome, split)) if outcome.status == "ok" and not outcome.rescued_from else {},
        missing=tuple(sorted(set(outcome.missing.values()))),
        believed_cached_tokens=record.request.cached_tokens if outcome.cached_tokens is not None else 0,
    )


def _pairs(record: DecisionRecord) -> Iterator[tuple[str, Pair]]:
    """Terms as they are predicted: `queue` from the door on, `admission` of a split alone."""
    outcome = comparable(record)
    if outcome is None:
        return
    terms, stages, split = record.terms, outcome.stages, record.chosen.mode == "split"
    actual: list[tuple[str, Term, float | None]] = [
        ("ttft", terms.ttft_s, outcome.ttft_s),
        ("itl", terms.itl_s, outcome.itl_s),
        ("queue", terms.queue_s, _queue_s(stages, split)),
        ("prefill", terms.prefill_s, stages.prefill_s),
    ]
    if split:
        actual.append(("transfer", terms.transfer_s, stages.transfer_s))
        actual.append(("admission", terms.admission_s, None if outcome.retractions else _admission_s(stages)))
    for name, predicted, actual_s in actual:
        if actual_s is not None and predicted.p50 < NEVER_S:
            yield name, Pair(predicted.p50, predicted.p90, actual_s)


def _queue_s(stages: Stages, split: bool) -> float | None:
    if stages.queue_s is None:
        return None
    return stages.queue_s + (stages.ingress_s or 0.0) + ((stages.bootstrap_s or 0.0) if split else 0.0)


def _admission_s(stages: Stages) -> float | None:
    if stages.alloc_s is None or stages.decode_queue_s is None:
        return None
    return stages.alloc_s + stages.decode_queue_s


def _inputs(outcome: Outcome, split: bool) -> Iterator[tuple[str, float | None]]:
    """Stages are asked for where every worker's telemetry came."""
    yield "ttft_s", outcome.ttft_s
    yield "output_tokens", outcome.output_tokens
    yield "prompt_tokens", outcome.prompt_tokens
    yield "cached_tokens", outcome.cached_tokens
    if (outcome.output_tokens or 0) > 1:
        yield "itl_s", outcome.itl_s
    if outcome.missing:
        return
    stages = outcome.stages
    yield "queue_s", stages.queue_s
    yield "prefill_s", stages.prefill_s
    yield "decode_s", stages.decode_s
    if split:
        yield "transfer_s", stages.transfer_s
        yield "alloc_s", stages.alloc_s
        yield "moved_bytes", outcome.moved_bytes
        yield "descriptors", outcome.descriptors

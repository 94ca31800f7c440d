"""An outcome as the router saw it, with what the workers' records say of it."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from kvferry.integrations.log.record import Missing, Moved, Outcome, RequestFacts, Stages
from kvferry.integrations.sglang.join_stages import Door, alone_stages, egress_s, ingress_s, split_stages
from kvferry.integrations.sglang.join_trip import Trip
from kvferry.integrations.sglang.plugin.wire import RequestRecord

_BEFORE_TOKEN = ("bootstrap_s", "alloc_s", "queue_s", "prefill_s", "transfer_s", "decode_queue_s")


def told(
    request: RequestFacts,
    outcome: Outcome,
    trip: Trip,
    door: Door,
    *,
    one_clock: bool,
    missing: Mapping[str, Missing],
) -> Outcome:
    """`outcome` with stages, bytes and queues as far as records have come; `missing`: for the rest, why.

    Of several sequences the last one to end is the one that the answer waited for: stages and queues are
    its; bytes, descriptors, cached tokens and retractions are sums over all. What is not in the records
    stays as the workers' answers told it. A stream shows its first token at the door, but not always how many
    tokens it had; an unstreamed answer tells the latter alone.
    """
    alone, prefills, decodes = (trip.of(part) for part in ("alone", "prefill", "decode"))
    ending = alone or decodes or prefills
    if not ending:
        return msgspec.structs.replace(outcome, missing=dict(missing))
    last = max(ending, key=lambda key: ending[key].ended_s)
    lone = alone.get(last)
    first, final = lone or prefills.get(last), lone or decodes.get(last)
    within = alone_stages(lone) if lone else split_stages(first, final, one_clock=one_clock)
    ends = Stages(
        ingress_s=ingress_s(first, trip.sent.prefill, door) if first else None,
        egress_s=egress_s(final, trip.sent.decode, door) if final else None,
    )
    computing, decoding = (alone or prefills).values(), (alone or decodes).values()
    ttft_s = outcome.ttft_s if request.stream else _first_token_s(lone, within, ends, outcome)
    output_tokens = sum(record.output_tokens for record in decoding) or outcome.output_tokens
    return msgspec.structs.replace(
        outcome,
        ttft_s=ttft_s,
        output_tokens=output_tokens,
        itl_s=_itl_s(outcome, output_tokens, request.sequences),
        prompt_tokens=outcome.prompt_tokens or sum(record.prompt_tokens for record in ending.values()),
        cached_tokens=sum(r.cached_tokens for r in computing) if computing else outcome.cached_tokens,
        stages=_over(_over(outcome.stages, within), ends),
        missing=dict(missing),
        retractions=sum(record.retractions for record in decoding) if decoding else None,
        found={record.role: _queues(record) for record in (first, final) if record},
        **_moved(prefills.values()),
    )


def _over(below: Stages, above: Stages) -> Stages:
    """`above` where it says something, else `below`."""
    given = {name: value for name in above.__struct_fields__ if (value := getattr(above, name)) is not None}
    return msgspec.structs.replace(below, **given)


def _first_token_s(
    lone: RequestRecord | None, within: Stages, ends: Stages, outcome: Outcome
) -> float | None:
    """Of an unstreamed answer, which does not show it: all that comes before decoding. What the router saw
    stays where a part of that is not known."""
    if ends.egress_s is None and outcome.ttft_s is not None:
        return outcome.ttft_s  # another host: how long the request was on its way there is not known
    before_s = (ends.ingress_s or 0.0) + (outcome.stages.rescue_s or 0.0)
    if lone is not None:
        if lone.first_token_s is None:
            return outcome.ttft_s
        return round(before_s - (lone.stages.prepare_s or 0.0) + lone.first_token_s, 6)  # which is in both
    spent = [getattr(within, name) for name in _BEFORE_TOKEN]
    return outcome.ttft_s if None in spent else round(before_s + sum(spent), 6)


def _itl_s(outcome: Outcome, output_tokens: int | None, sequences: int) -> float | None:
    """Over as many tokens as there truly were; the router had counted events."""
    if outcome.itl_s is None or not output_tokens or not outcome.output_tokens:
        return outcome.itl_s
    counted, true = (max(1.0, n / sequences - 1) for n in (outcome.output_tokens, output_tokens))
    return outcome.itl_s * counted / true


def _moved(prefills: Iterable[RequestRecord]) -> dict[str, Any]:
    """Every rank moved as much as the one that counted."""
    calls = [record.transfer for record in prefills if record.transfer is not None]
    if not calls:
        return {}
    return {
        "moved_bytes": sum(call.bytes * call.ranks for call in calls),
        "descriptors": sum(call.descriptors * call.ranks for call in calls),
        "moved": Moved(
            transport=calls[0].transport,
            chunks=sum(call.chunks for call in calls),
            calls=sum(call.calls for call in calls),
            wait_s=_seconds(call.wait_s for call in calls),
            build_s=_seconds(call.build_s for call in calls),
            busy_s=_seconds(call.busy_s for call in calls),
            span_s=max(call.span_s for call in calls),
            aux_bytes=sum(call.aux_bytes for call in calls),
        ),
    }


def _queues(record: RequestRecord) -> dict[str, int]:
    counts = msgspec.structs.asdict(record.at_enqueue)
    return {name: count for name, count in counts.items() if count}


def _seconds(values: Iterable[float]) -> float:
    return round(sum(values), 6)

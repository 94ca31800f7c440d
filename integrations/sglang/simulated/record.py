"""What kvferry's plugin would tell of a request, from the marks of its simulated flight."""

from kvferry.integrations.sglang.plugin.wire import RID_CHARS, RequestRecord, Role, Stages
from kvferry.integrations.sglang.simulated.flight import Flight, Kind
from kvferry.integrations.sglang.simulated.pump import Pump

_ROLES: dict[Kind, Role] = {Kind.PREFILL: "prefill", Kind.DECODE: "decode"}


def record_of(flight: Flight, instance: str, pump: Pump, *, on_decode: bool) -> RequestRecord:
    """Of a flight that has just ended, in real seconds. Stages as in `wire.Stages`."""
    job, scale, end_s = flight.job, pump.scale, pump.events.now_s
    first_s = job.prefill_end_s if flight.kind is Kind.PREFILL else job.first_token_s
    return RequestRecord(
        worker=instance,
        role=_ROLES.get(flight.kind, "local" if on_decode else "colocated"),
        rid=flight.asked.rid[:RID_CHARS],
        room=None if flight.kind is Kind.WHOLE else flight.asked.room,
        received_s=round(flight.received_s, 6),
        ended_s=round(pump.wall_s(end_s), 6),
        wall_s=round((end_s - flight.taken_s) / scale, 6),
        first_token_s=round((first_s - flight.taken_s) / scale, 6) if first_s == first_s else None,
        prompt_tokens=flight.asked.prompt_tokens,
        output_tokens=flight.tokens,
        cached_tokens=flight.cached_tokens,
        retractions=job.retractions,
        finish=_finish(flight),
        stages=_stages(flight, end_s, scale),
        transfer=flight.transfer,
    )


def _stages(flight: Flight, end_s: float, scale: float) -> Stages:
    """The stage that a request ended in has all the time that is left; those behind it are None."""
    spent: dict[str, float] = {}
    at_s = flight.taken_s
    for name, mark_s in _marks(flight, end_s):
        reached = mark_s == mark_s  # not NaN
        spent[name] = round(max(0.0, (mark_s if reached else end_s) - at_s) / scale, 6)
        if not reached:
            break
        at_s = max(at_s, mark_s)
    return Stages(**spent)


def _marks(flight: Flight, end_s: float) -> tuple[tuple[str, float], ...]:
    """Each stage, in order, with the simulated time at which it ended; NaN where it did not."""
    job, taken_s = flight.job, flight.taken_s
    if flight.kind is Kind.PREFILL:
        return (
            ("prepare_s", taken_s),
            ("bootstrap_s", job.queued_s),
            ("alloc_s", job.queued_s),
            ("queue_s", job.prefill_start_s),
            ("prefill_s", job.prefill_end_s),
            ("transfer_s", end_s),
        )
    if flight.kind is Kind.DECODE:
        return (
            ("prepare_s", taken_s),
            ("bootstrap_s", taken_s),
            ("alloc_s", flight.granted_s),
            ("transfer_s", flight.arrived_s),
            ("queue_s", job.first_token_s),
            ("decode_s", end_s),
        )
    return (
        ("prepare_s", taken_s),
        ("queue_s", job.prefill_start_s),
        ("prefill_s", job.first_token_s),
        ("decode_s", end_s),
    )


def _finish(flight: Flight) -> str:
    if flight.failure is not None:
        return "error" if flight.failure.status else "abort"
    return "stop" if flight.asked.stops and flight.kind is not Kind.PREFILL else "length"

"""A probed path as JSON: written by whoever probed, strictly read."""

import math
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kvferry.models.paths.curve import Curve
from kvferry.models.paths.fit import Fit
from kvferry.models.paths.probed import Probed

MOST_BYTES = 4096
# No wire is that fast: what is made of more is not finite.
MOST_BYTES_PER_S = 1e15

_Name = Annotated[str, Meta(min_length=1, max_length=200)]
_Names = Annotated[tuple[_Name, ...], Meta(min_length=1, max_length=16)]
_Seconds = Annotated[float, Meta(ge=0.0, le=1e6)]
_Share = Annotated[float, Meta(ge=0.0, le=1e9)]
_Unix = Annotated[float, Meta(ge=0.0, le=1e11)]
_PerByte = Annotated[float, Meta(ge=0.0, le=1.0)]


class StoredPath(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One field of the hash, as JSON. `split_bytes` 0: one regime, and what is late says nothing."""

    v: Literal[1]
    src_hosts: _Names
    dst_hosts: _Names
    transport: _Name
    claimed_class: _Name
    met: bool
    verdict: Annotated[str, Meta(max_length=1000)]
    measured_s: _Unix
    seen_s: _Unix
    alpha_s: _Seconds
    s_per_byte: _PerByte
    gamma_s: _Seconds
    median_error: _Share
    max_error: _Share
    moves: Annotated[int, Meta(ge=0, le=10**9)]
    contention: _Share | None = None
    registration_s_per_byte: _PerByte = 0.0
    first_contact_s: _Seconds = 0.0
    split_bytes: Annotated[float, Meta(ge=0.0, le=1e15)] = 0.0
    jump_s: _Seconds = 0.0
    late_s_per_byte: _PerByte = 0.0
    late_gamma_s: _Seconds = 0.0
    overlapped: bool = False


def encode(found: Probed) -> bytes:
    """ValueError for what `decode` would not read: a figure beyond all measure, a name too long."""
    curve, fitted = found.fitted.curve, found.fitted
    stored = StoredPath(
        v=1,
        src_hosts=found.src_hosts,
        dst_hosts=found.dst_hosts,
        transport=found.transport,
        claimed_class=found.claimed_class,
        met=found.met,
        verdict=found.verdict[:1000],
        measured_s=found.measured_s,
        seen_s=found.seen_s,
        alpha_s=curve.alpha_s,
        s_per_byte=curve.s_per_byte,
        gamma_s=curve.gamma_s,
        median_error=fitted.median_error,
        max_error=fitted.max_error,
        moves=fitted.moves,
        contention=fitted.contention,
        registration_s_per_byte=found.registration_s_per_byte,
        first_contact_s=found.first_contact_s,
        split_bytes=curve.split_bytes if curve.two_regimes else 0.0,
        jump_s=curve.jump_s,
        late_s_per_byte=curve.late_s_per_byte,
        late_gamma_s=curve.late_gamma_s,
        overlapped=curve.overlapped,
    )
    told = msgspec.json.encode(stored)
    decode(told)
    return told


def decode(told: bytes) -> Probed:
    """ValueError where `told` is not what `encode` makes."""
    if len(told) > MOST_BYTES:
        raise ValueError(f"{len(told)} bytes, more than {MOST_BYTES}")
    one = msgspec.json.decode(told, type=StoredPath)  # its errors are ValueErrors
    split_bytes = one.split_bytes or math.inf
    late = (one.jump_s, one.late_s_per_byte, one.late_gamma_s, one.overlapped)
    curve = Curve(one.alpha_s, one.s_per_byte, one.gamma_s, split_bytes, *late)
    if curve.beta_bytes_per_s > MOST_BYTES_PER_S:
        raise ValueError("its bytes cost nothing")
    fitted = Fit(curve, one.median_error, one.max_error, one.contention, one.moves)
    return Probed(
        one.src_hosts,
        one.dst_hosts,
        one.transport,
        fitted,
        one.claimed_class,
        one.met,
        one.verdict,
        one.registration_s_per_byte,
        one.first_contact_s,
        one.measured_s,
        one.seen_s,
    )

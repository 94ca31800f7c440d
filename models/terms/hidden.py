"""Moves behind a prefill: what is seen of one, and what that says of the wire."""

import math

# Schedulers look at a move every few milliseconds: less than that says nothing of the wire.
NOISE_S = 5e-3


def wire_s(visible_s: float, prefill_s: float, new_tokens: float, chunk_tokens: float) -> float:
    """Seconds on the wire of a move of which `visible_s` outlasted the prefill of `new_tokens` in chunks.

    The inverse of what `kvferry.policy.predict` says of a move: chunks travel while later ones are computed,
    and the first, the last or the one before it is waited for.
    """
    pieces = _pieces(prefill_s, new_tokens, chunk_tokens)
    return min((visible_s + hidden_s) / share for share, hidden_s in pieces)


def waited_for(
    visible_s: float, prefill_s: float, new_tokens: float, chunk_tokens: float
) -> tuple[float, float]:
    """(share, hidden_s) of such a move: the part of it that was waited for, by what was seen, and the seconds
    of prefill that it overlapped: visible_s = share * wire_s - hidden_s."""
    pieces = _pieces(prefill_s, new_tokens, chunk_tokens)
    return min(pieces, key=lambda piece: (visible_s + piece[1]) / piece[0])


def nearest_s(
    expected_s: float,
    visible_s: float,
    prefill_s: float,
    new_tokens: float,
    chunk_tokens: float,
    noise_s: float = NOISE_S,
) -> float:
    """Of the seconds on the wire that `visible_s`, give or take `noise_s`, allows, those nearest to
    `expected_s`: a move that its prefill hides says only that it was not slower than that."""
    low_s = wire_s(max(0.0, visible_s - noise_s), prefill_s, new_tokens, chunk_tokens)
    high_s = wire_s(max(0.0, visible_s) + noise_s, prefill_s, new_tokens, chunk_tokens)
    return min(max(expected_s, low_s), high_s)


def _pieces(prefill_s: float, new_tokens: float, chunk_tokens: float) -> tuple[tuple[float, float], ...]:
    """(share, hidden_s) if what followed the first chunk, the last one, and the last two, was waited for."""
    new_tokens, chunk_tokens = max(1.0, new_tokens), max(1.0, chunk_tokens)
    chunk = min(chunk_tokens / new_tokens, 1.0)
    last = 1.0 - (math.ceil(new_tokens / chunk_tokens) - 1.0) * chunk
    return (1.0, prefill_s * (1.0 - chunk)), (last, 0.0), (min(chunk + last, 1.0), prefill_s * last)

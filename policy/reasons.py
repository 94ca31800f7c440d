"""Which term decided: from the scores of two plans to a reason code."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from kvferry.policy.candidates import Floats, Ints
from kvferry.policy.decision import Reason
from kvferry.policy.plan import Mode
from kvferry.policy.predict import ITL, PREFILL, TRANSFER

if TYPE_CHECKING:
    from kvferry.policy.evaluation import Evaluation

SMALL_PROMPT_TOKENS = 2048
SHORT_OUTPUT_TOKENS = 32

REASONS = tuple(Reason)
_VALUES = np.array([reason.value for reason in REASONS], dtype=object)
_CODE = {reason: code for code, reason in enumerate(REASONS)}
# What it means that a plan is worse in each row of `_differences`; a move and a prefill depend on more.
_BY_ROW = np.array(
    [
        _CODE[reason]
        for reason in (
            Reason.FASTER_PREFILL,
            Reason.QUEUE_GAIN,
            Reason.SLOW_PATH,
            Reason.SLOW_PATH,
            Reason.KV_PRESSURE,
            Reason.PROTECTS_DECODES,
            Reason.PROTECTS_QUEUE,
            Reason.FASTER_DECODE,
            Reason.PROTECTS_DECODES,
        )
    ]
)
_BLOCKS = (Reason.INCOMPATIBLE_LAYOUT, Reason.PATH_DOWN, Reason.WORKER_DOWN)


def reason_codes(evaluation: "Evaluation", row: int) -> Ints:
    """[P] index into REASONS: the term in which each plan is most worse than `row`.

    Against plans of its own mode that is always `lower_score`.
    """
    prediction, count = evaluation.prediction, evaluation.cluster.candidates.colocated_count
    rivals = slice(0, count) if row >= count else slice(count, None)
    new_tokens = prediction.new_tokens[rivals]
    worst = _differences(evaluation, row, rivals).argmax(axis=0)
    codes: Ints = _BY_ROW.take(worst)
    if row < count:
        move = codes == _CODE[Reason.SLOW_PATH]
        if evaluation.request.expected_output_tokens <= SHORT_OUTPUT_TOKENS:
            codes[move] = _CODE[Reason.SHORT_OUTPUT]
        small = new_tokens < SMALL_PROMPT_TOKENS
        small &= move
        codes[small] = _CODE[Reason.SMALL_PROMPT]
        crowded = prediction.contended_s[rivals] > 0.5 * prediction.terms[TRANSFER, rivals]
        crowded &= move
        codes[crowded] = _CODE[Reason.CONGESTED_PATH]
    held = worst == PREFILL
    held &= new_tokens > prediction.new_tokens[row]
    codes[held] = _CODE[Reason.PREFIX_HELD]
    every = np.full(len(prediction.new_tokens), _CODE[Reason.LOWER_SCORE])
    every[rivals] = codes
    return every


def no_rival(evaluation: "Evaluation", row: int) -> Reason:
    """Why the other mode has no usable plan: what refused all of its plans, else `only_option`."""
    table = evaluation.cluster.candidates
    other = Mode.COLOCATED if table.split[row] else Mode.SPLIT
    blocked = {code for key, (code, _) in table.impossible.items() if key.startswith(other.value)}
    rivals = table.split != table.split[row]
    if rivals.any():
        prediction = evaluation.prediction
        if not prediction.feasible[rivals].all():
            return Reason.ONLY_OPTION
        blocked.add(Reason.TOO_LARGE)
    if len(blocked) == 1 and not blocked.isdisjoint((*_BLOCKS, Reason.TOO_LARGE)):
        return blocked.pop()
    return Reason.ONLY_OPTION


def against(evaluation: "Evaluation", row: int, codes: Ints, reason: Reason) -> Mapping[str, str]:
    """A reason code against every plan that was not chosen; `reason` itself where a plan scored better."""
    table, prediction = evaluation.cluster.candidates, evaluation.prediction
    total = evaluation.scores.total
    if total[total.argmin()] < total[row]:
        codes[total < total[row]] = _CODE[reason]
    if not evaluation.all_usable:
        barred = np.where(prediction.fits, _CODE[Reason.STALE_LOAD], _CODE[Reason.TOO_LARGE])
        barred[~prediction.feasible] = _CODE[Reason.EXCLUDED]
        codes = np.where(evaluation.usable, codes, barred)
    told = dict(zip(table.keys, _VALUES.take(codes).tolist(), strict=True))
    del told[table.keys[row]]
    for key, (code, _) in table.impossible.items():
        told[key] = code.value
    return told


def _differences(evaluation: "Evaluation", row: int, rivals: slice) -> Floats:
    """[terms, rivals]: by how much each of `rivals` is worse than `row`, in score.

    The loss of a late first token is shared among the terms of TTFT in proportion to their difference.
    """
    terms, scores = evaluation.prediction.terms, evaluation.scores
    table = evaluation.cluster.candidates
    pre, dec = table.pre[rivals], table.dec[rivals]
    parts = np.empty((len(_BY_ROW), len(pre)))
    seconds, losses = parts[:ITL], parts[ITL:]
    np.subtract(terms[:ITL, rivals], terms[:ITL, row : row + 1], out=seconds)
    share = np.abs(scores.ttft[rivals] - scores.ttft[row])
    share /= np.add.reduce(np.abs(seconds), axis=0) + 1e-12
    seconds *= share
    np.subtract(
        scores.on_prefill.take(pre, axis=1), scores.on_prefill[:, table.pre[row], None], out=losses[:2]
    )
    np.subtract(scores.on_decode.take(dec, axis=1), scores.on_decode[:, table.dec[row], None], out=losses[2:])
    return parts

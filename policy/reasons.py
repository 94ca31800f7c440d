"""Which term decided: from the scores of two plans to a reason code."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from kvferry.policy.candidates import Floats, Ints
from kvferry.policy.decision import Reason
from kvferry.policy.predict import ADMISSION, P50, PREFILL, QUEUE, REPACK, TRANSFER

if TYPE_CHECKING:
    from kvferry.policy.evaluation import Evaluation

SMALL_PROMPT_TOKENS = 2048
SHORT_OUTPUT_TOKENS = 32

REASONS = tuple(Reason)
_VALUES = tuple(reason.value for reason in REASONS)
_CODE = {reason: code for code, reason in enumerate(REASONS)}
# What it means that a plan is worse in each row of `_differences`; transfer and prefill depend on more.
_ROWS = ("transfer", "prefill", "queue", "admission", "itl", "stall", "growth", "behind")
_BY_ROW = np.array(
    [
        _CODE[reason]
        for reason in (
            Reason.SLOW_PATH,
            Reason.FASTER_PREFILL,
            Reason.QUEUE_GAIN,
            Reason.KV_PRESSURE,
            Reason.PROTECTS_DECODES,
            Reason.PROTECTS_DECODES,
            Reason.PROTECTS_DECODES,
            Reason.PROTECTS_QUEUE,
        )
    ]
)


def reason_codes(evaluation: "Evaluation", row: int) -> Ints:
    """[P] index into REASONS: the term in which each plan is most worse than `row`."""
    prediction = evaluation.prediction
    worst = _differences(evaluation, row).argmax(axis=0)
    codes = _BY_ROW[worst]
    short = evaluation.request.expected_output_tokens <= SHORT_OUTPUT_TOKENS
    long_code = _CODE[Reason.SHORT_OUTPUT if short else Reason.SLOW_PATH]
    move = np.where(prediction.new_tokens < SMALL_PROMPT_TOKENS, _CODE[Reason.SMALL_PROMPT], long_code)
    crowded = prediction.contended_s > 0.5 * prediction.terms[TRANSFER, P50]
    move[crowded] = _CODE[Reason.CONGESTED_PATH]
    np.copyto(codes, move, where=worst == _ROWS.index("transfer"))
    held = (worst == _ROWS.index("prefill")) & (prediction.new_tokens > prediction.new_tokens[row])
    codes[held] = _CODE[Reason.PREFIX_HELD]
    return codes


def against(evaluation: "Evaluation", row: int, codes: Ints) -> Mapping[str, str]:
    """A reason code against every plan that was not chosen."""
    table = evaluation.cluster.candidates
    codes = np.where(table.split == table.split[row], _CODE[Reason.LOWER_SCORE], codes)
    if not evaluation.usable.all():
        barred = np.where(evaluation.prediction.feasible, _CODE[Reason.TOO_LARGE], _CODE[Reason.EXCLUDED])
        codes = np.where(evaluation.usable, codes, barred)
    told = dict(zip(table.keys, [_VALUES[code] for code in codes.tolist()], strict=True))
    del told[table.keys[row]]
    for key, (reason, _) in table.impossible.items():
        told[key] = reason.value
    return told


def _differences(evaluation: "Evaluation", row: int) -> Floats:
    """[terms, P]: by how much each plan is worse than `row`, in score.

    The loss of a late first token is shared among the terms of TTFT in proportion to their difference.
    """
    terms, scores = evaluation.prediction.terms, evaluation.scores
    parts = np.empty((len(_ROWS), terms.shape[2]))
    np.add(terms[TRANSFER, P50], terms[REPACK, P50], out=parts[0])
    parts[1], parts[2], parts[3] = terms[PREFILL, P50], terms[QUEUE, P50], terms[ADMISSION, P50]
    parts[4], parts[5], parts[6], parts[7] = scores.itl, scores.stall, scores.growth, scores.behind
    parts -= parts[:, row : row + 1]
    seconds = np.abs(parts[:4]).sum(axis=0)
    seconds += 1e-12
    parts[:4] *= np.abs(scores.ttft - scores.ttft[row]) / seconds
    return parts

"""A learned model that cannot hurt: where it fails, the structured prediction decides, and it is counted."""

import logging
from collections.abc import Callable, Sequence

import numpy as np

from kvferry.policy.candidates import Floats
from kvferry.policy.correction import QUANTILES, TARGETS, Correction, Corrector

log = logging.getLogger("kvferry.models")

# Predictions are not off by factors of e**30, in the root mean square over plans.
LIMIT = 30.0
Fault = Callable[[str, str], None]


class Guarded:
    """A Corrector around another one. `fault(version, what)` is called for every request in which that one
    raises, or says what no correction can be."""

    __slots__ = ("_corrector", "_fault", "version")

    def __init__(self, corrector: Corrector, fault: Fault) -> None:
        self.version = corrector.version
        self._corrector, self._fault = corrector, fault

    def correct(self, features: Floats) -> Correction:
        try:
            found = self._corrector.correct(features)
            what = _wrong(found, features.shape[1])
        except Exception as error:  # noqa: BLE001 - whatever a model does, the request is decided
            what = _said(error)
        if what:
            self._fault(self.version, what)
            return _none(features.shape[1], what)

        def quantiles(rows: Sequence[int]) -> Floats:
            try:
                told = found.quantiles(rows)
                used = told[:2, :, found.inside.take(rows)]
                what = "" if _sound(used) else "quantiles that are not finite, or beyond all measure"
            except Exception as error:  # noqa: BLE001 - as above: these are only told of
                what = _said(error)
            if not what:
                return told
            self._fault(self.version, what)
            return _medians(found, rows)

        return Correction(found.ttft, found.itl, found.inside, found.all_inside, quantiles, found.why_not)


def _wrong(found: Correction, plans: int) -> str:
    """What no correction can be like; "": nothing."""
    for logs in (found.ttft, found.itl):
        if logs.shape != (plans,):
            return "it does not correct each plan"
        if not _sound(logs if found.all_inside else logs[found.inside]):
            return "a correction that is not finite, or beyond all measure"
    return ""


def _sound(logs: Floats) -> bool:
    # one sum tells all: a NaN is not under anything, nor is an infinity
    return bool(np.vdot(logs, logs) <= LIMIT * LIMIT * logs.size)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]


def _none(plans: int, what: str) -> Correction:
    nothing = np.zeros(plans)

    def quantiles(rows: Sequence[int]) -> Floats:
        return _medians(none, rows)

    none = Correction(
        nothing,
        nothing,
        np.zeros(plans, dtype=np.bool_),
        False,
        quantiles,
        lambda row: f"the model failed: {what}",
    )
    return none


def _medians(found: Correction, rows: Sequence[int]) -> Floats:
    """All that is known where quantiles cannot be had."""
    told = np.full((len(TARGETS), len(QUANTILES), len(rows)), np.nan)
    told[0] = found.ttft.take(rows)
    told[1] = found.itl.take(rows)
    return told

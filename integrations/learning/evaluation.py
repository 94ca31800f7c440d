"""How good a model is on requests it has not seen, beside the live version and what needs no model."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvferry.models.residual.artifact import Artifact
from kvferry.models.residual.load import corrector
from kvferry.models.training import baselines, contenders
from kvferry.models.training.report import Score, best, scores
from kvferry.models.training.rows import F32, SHARES, Rows
from kvferry.policy.correction import TARGETS

# With fewer no figure says anything.
MIN_ROWS = 15
Scores = dict[str, Score]


class TooFewError(Exception):
    """Not enough requests to judge by; one line."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """`later` is judged on, `earlier` is what baselines learn from. `in_sample`: the model has seen it."""

    earlier: Rows
    later: Rows
    why: str
    in_sample: bool = False


@dataclass(frozen=True, slots=True)
class Evaluation:
    """`model`: scores of `version`, None without one; `inside`: share of the requests that lie where it was
    trained. `predicted`: [N, 3, 7] of the model, or else of the live version."""

    held_out: HeldOut
    version: str
    model: Scores | None
    inside: float | None
    live: Scores
    structured: Scores
    baselines: dict[str, Scores]
    predicted: F32 = field(repr=False)

    @property
    def judged(self) -> Scores:
        return self.live if self.model is None else self.model

    def gains(self) -> dict[str, dict[str, Any]]:
        """Per target: the best baseline, and by what share the judged median error is below its."""
        found = {}
        for name in TARGETS:
            other, own = best(self.baselines, name), self.judged[name].mdape
            if other is not None and own is not None and other[1] > 0.0:
                found[name] = {"baseline": other[0], "gain": 1.0 - own / other[1]}
        return found

    def told(self) -> dict[str, Any]:
        """As `--json` prints it."""
        later = self.held_out.later
        return {
            "version": self.version,
            "rows": len(later),
            "window_s": later.window_s,
            "held_out": self.held_out.why,
            "in_sample": self.held_out.in_sample,
            "inside": self.inside,
            "terms": _plain(self.judged),
            "live": _plain(self.live),
            "structured": _plain(self.structured),
            "baselines": {name: _plain(each) for name, each in self.baselines.items()},
            "gains": self.gains(),
        }


def evaluate(rows: Rows, artifact: Artifact | None = None) -> Evaluation:
    """Of rows with predictions, oldest first. Raises TooFewError."""
    held_out = hold_out(rows, artifact)
    earlier, later = held_out.earlier, held_out.later
    said, inside = contenders.live(later), None
    live = scores(later.actual_s, said)
    if artifact is not None:
        said, inside = contenders.learned(later, corrector(artifact))
    return Evaluation(
        held_out=held_out,
        version="live" if artifact is None else artifact.version,
        model=None if artifact is None else scores(later.actual_s, said),
        inside=inside,
        live=live,
        structured=scores(later.actual_s, contenders.structured(later)),
        baselines={
            "moving_average": scores(later.actual_s, baselines.moving_average(earlier, later)),
            "linear_fit": scores(later.actual_s, baselines.linear_fit(earlier, later)),
            "catalogue": scores(later.actual_s, baselines.catalogue(later)),
        },
        predicted=said,
    )


def hold_out(rows: Rows, artifact: Artifact | None) -> HeldOut:
    """What came after all that the model has seen, its test rows included; else, without a model, the later
    part of the log. A log that lies wholly in the model's window is not held out, and says so."""
    if len(rows) < MIN_ROWS:
        raise TooFewError(f"only {len(rows)} requests can be judged: evaluate needs {MIN_ROWS}")
    cut = round(SHARES[0] * len(rows))
    first, rest = rows.take(slice(0, cut)), rows.take(slice(cut, None))
    if artifact is None:
        return HeldOut(first, rest, "the later part of the log; baselines learned from the earlier one")
    until_s = artifact.manifest.window_to_s
    seen = int(np.searchsorted(rows.time_s, until_s, side="right"))
    unseen = len(rows) - seen
    if unseen < MIN_ROWS:
        why = f"NOT held out: only {unseen} requests came after what {artifact.version} was trained on"
        return HeldOut(first, rest, why, in_sample=True)
    if seen < MIN_ROWS:
        return HeldOut(
            first, rest, f"the later part of the log, all of it after {artifact.version}'s training"
        )
    why = f"what came after {artifact.version}'s training"
    return HeldOut(rows.take(slice(0, seen)), rows.take(slice(seen, None)), why)


def _plain(found: Scores) -> dict[str, Any]:
    return {name: dataclasses.asdict(each) for name, each in found.items()}

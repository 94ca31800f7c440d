"""A model trained on the earlier part of a log, judged on the later one, and what it should reach."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import numpy as np

from kvferry.integrations.learning.evaluation import Evaluation, evaluate
from kvferry.integrations.learning.progress import progress
from kvferry.integrations.learning.sources import read_rows
from kvferry.integrations.learning.tally import Tally
from kvferry.integrations.log.source import files_of
from kvferry.models.residual.artifact import Artifact
from kvferry.models.training.fit import SHARES, FitError, fit
from kvferry.models.training.report import Score, score
from kvferry.policy.correction import TARGETS

HELD_OUT = 500
ERRORS = {"transfer": 0.12, "ttft": 0.20}
COVERAGE_P90 = 0.87, 0.93
GAIN = 0.30
TRANSFER = TARGETS.index("transfer")


class _Chosen(msgspec.Struct, frozen=True):
    prefill: str = ""
    transport: str | None = None


class _Line(msgspec.Struct, frozen=True):
    """What of a log's line tells its path; lines that are no decision have no time."""

    time: float = 0.0
    chosen: _Chosen = _Chosen()


@dataclass(frozen=True, slots=True)
class Goal:
    """`low` <= value <= `high`; a value that nothing was there to measure for misses it."""

    name: str
    value: float | None
    low: float = -1.0
    high: float = 1.0

    @property
    def reached(self) -> bool:
        return self.value is not None and self.low <= self.value <= self.high


@dataclass(frozen=True, slots=True)
class Judgement:
    """`paths`: transfer by what the KV went over."""

    artifact: Artifact
    evaluation: Evaluation
    goals: tuple[Goal, ...]
    paths: dict[str, Score]
    tally: Tally

    @property
    def reached(self) -> bool:
        return all(goal.reached for goal in self.goals)

    def told(self) -> dict[str, Any]:
        """As `--json` prints it."""
        manifest = self.artifact.manifest
        return {
            **self.evaluation.told(),
            "kind": manifest.kind,
            "split": manifest.rows,
            "notes": list(manifest.notes),
            "records": self.tally.told(),
            "paths": {name: asdict(each) for name, each in self.paths.items()},
            "goals": [{**asdict(goal), "reached": goal.reached} for goal in self.goals],
        }


def judge(sources: Sequence[str], seed: int, held_out: int) -> Judgement:
    """Of logs (files or folders). At least `held_out` requests are kept from training.

    Raises FitError where too few are left to train on, SourceError.
    """
    tally = Tally()
    with progress("reading") as report:
        rows = read_rows(sources, tally, progress=report)
    # training keeps the newest of what it is given to test by: judged on, too
    known = int(min(len(rows), (len(rows) - held_out) / (1.0 - SHARES[-1])))
    if known <= held_out:
        raise FitError(f"{len(rows)} requests in the log: too few to keep {held_out} of them from training")
    with progress("training") as report:
        artifact = fit(rows.take(slice(0, known)), seed=seed, progress=report)
    found = evaluate(rows, artifact)
    return Judgement(artifact, found, tuple(_goals(found)), _paths(found, sources), tally)


def _goals(found: Evaluation) -> Iterator[Goal]:
    gains = found.gains()
    for name, most in ERRORS.items():
        of = found.judged[name]
        yield Goal(f"{name}: median error", of.mdape, high=most)
        yield Goal(f"{name}: under its p90", of.coverage_p90, *COVERAGE_P90)
        yield Goal(f"{name}: below the best baseline", gains[name]["gain"] if name in gains else None, GAIN)


def _paths(found: Evaluation, sources: Sequence[str]) -> dict[str, Score]:
    later = found.held_out.later
    of = dict(_named(sources))
    names = np.array([of.get(time_s, "") for time_s in later.time_s.tolist()])
    return {
        name: score(later.actual_s[here, TRANSFER], found.predicted[here][:, :, TRANSFER])
        for name in sorted(set(names.tolist()) - {""})
        for here in (names == name,)
    }


def _named(sources: Sequence[str]) -> Iterator[tuple[float, str]]:
    """(time, transport and path) of every split request."""
    decode = msgspec.json.Decoder(_Line).decode
    for path in (path for source in sources for path in files_of(source)):
        told = path.parent / "paths.json"
        names = json.loads(told.read_text()) if told.exists() else {}
        for line in _lines(path):
            found = decode(line)
            if found.chosen.transport:
                host = urlsplit(found.chosen.prefill).hostname
                yield found.time, f"{found.chosen.transport}, {names.get(host, 'one host')}"


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from file

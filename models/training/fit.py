"""From rows to an artifact: what `kvferry train` does once it has read its logs."""

import importlib.metadata
from collections.abc import Callable, Mapping

import numpy as np

from kvferry.models.residual.artifact import Artifact
from kvferry.models.residual.load import LIMITS
from kvferry.models.residual.manifest import SCHEMA, Manifest, Offsets
from kvferry.models.residual.tensors import Tensors
from kvferry.models.training import conformal
from kvferry.models.training.contest import FOREST_MARGIN, KINDS, NO_CORRECTION, choose, losses, quantiles
from kvferry.models.training.rows import F32, Rows
from kvferry.models.training.scores import scores
from kvferry.policy.correction import QUANTILES, TARGETS
from kvferry.policy.features import FEATURES

# Of the rows, in order of time.
SHARES = (0.7, 0.15, 0.15)
MOST_ROWS = 400_000
# A target is learned from so many known values on.
MIN_KNOWN = 200
MIN_ROWS = 100
# told of how much is done, and of how much there is
Report = Callable[[float, float], None]
_WORK = {"network": 0.3, "forest": 0.7}


class FitError(Exception):
    """Nothing can be fitted; the message says why, and what to do, in one line."""


def fit(rows: Rows, *, seed: int = 0, progress: Report = lambda done, total: None) -> Artifact:
    """Train every kind of model on the oldest 70%, calibrate on the next 15%, test on the newest 15%.

    Targets are ln(actual + EPSILON_S) - ln(structured + EPSILON_S), as `Rows.targets` has them, within LIMITS
    of `residual.load`. Which kind, and whether it is better than no correction of a target, is found on the
    calibration rows: calibrated on the older half, compared by pinball loss on the newer. Where none is
    better, the artifact only has offsets. `created_s` is the time of the newest row: the same rows and seed
    give the same version on one machine. Time grows with the rows up to MOST_ROWS; of more, every n-th is
    taken. Raises FitError.
    """
    if len(rows) < MIN_ROWS:
        raise FitError(
            f"{len(rows)} requests to learn from: {MIN_ROWS} are the least, some thousands are good"
        )
    ordered = rows.in_time_order()
    parts = [
        _thinned(part, share, seed) for part, share in zip(ordered.of_time_split(SHARES), SHARES, strict=True)
    ]
    train, calibrate, test = parts
    notes = [f"{sum(map(len, parts))} of {len(rows)} rows, evenly in time"] if len(rows) > MOST_ROWS else []
    wanted = _known(train, calibrate, notes)
    found = _trained(train, wanted, seed, progress)
    kind, helps = _chosen(found, wanted, calibrate, notes)
    targets = tuple(target for target, each in zip(wanted, helps, strict=True) if each)
    tensors: Tensors = {}
    if targets:
        tensors = KINDS[kind].only(found[kind], [place for place, each in enumerate(helps) if each])
    calibration = _calibration(kind, tensors, targets, calibrate)
    manifest = Manifest(
        schema=SCHEMA,
        version="",
        kind=kind,
        created_s=ordered.window_s[1],
        feature_set=rows.feature_set,
        features=FEATURES,
        low=tuple(train.features.min(axis=0).tolist()),
        high=tuple(train.features.max(axis=0).tolist()),
        targets=targets,
        window_from_s=train.window_s[0],
        window_to_s=calibrate.window_s[1],
        rows={"train": len(train), "calibrate": len(calibrate), "test": len(test)},
        data_sha256=ordered.data_sha256,
        weights_sha256="",
        metrics=_metrics(found, wanted, targets, kind, calibrate, test),
        calibration=calibration,
        seed=seed,
        kvferry=importlib.metadata.version("kvferry"),
        notes=tuple(notes),
    )
    return Artifact.pack(manifest, tensors)


def _thinned(part: Rows, share: float, seed: int) -> Rows:
    most = int(MOST_ROWS * share)
    if len(part) <= most:
        return part
    start = np.random.default_rng(seed).random()
    return part.take(((np.arange(most) + start) * (len(part) / most)).astype(np.intp))


def _targets(rows: Rows) -> F32:
    """[N, 7], within LIMITS."""
    limits = LIMITS[:, 0, 0].astype(np.float32)
    return np.clip(rows.targets, -limits, limits)


def _known(train: Rows, calibrate: Rows, notes: list[str]) -> tuple[str, ...]:
    """The targets that are known often enough to learn them."""
    counts = np.isfinite(train.targets).sum(axis=0).tolist()
    later = np.isfinite(calibrate.targets).sum(axis=0).tolist()
    wanted = []
    for target, count, more in zip(TARGETS, counts, later, strict=True):
        if count >= MIN_KNOWN and more >= 2 * conformal.MIN_IN_ALL:
            wanted.append(target)
        else:
            notes.append(f"{target} is known of {count} + {more} requests only: not learned")
    return tuple(wanted)


def _trained(train: Rows, wanted: tuple[str, ...], seed: int, progress: Report) -> dict[str, Tensors]:
    """Every kind's tensors for the wanted targets; none where none are."""
    found: dict[str, Tensors] = {}
    if not wanted:
        return found
    columns = [TARGETS.index(target) for target in wanted]
    targets, begun = np.ascontiguousarray(_targets(train)[:, columns]), 0.0
    for kind, share in _WORK.items():

        def report(done: float, begun: float = begun, share: float = share) -> None:
            progress(begun + share * done, 1.0)

        try:
            found[kind] = KINDS[kind].fit(train.features, targets, seed=seed, progress=report)
        except ImportError as error:
            raise FitError(f"training needs {error.name}: pip install 'kvferry[train]'") from error
        begun += share
    return found


def _chosen(
    found: Mapping[str, Tensors], wanted: tuple[str, ...], calibrate: Rows, notes: list[str]
) -> tuple[str, list[bool]]:
    if not found:
        notes.append("no target is known often enough: no correction, only offsets")
        return NO_CORRECTION, []
    earlier, later = calibrate.of_time_split((0.5, 0.5))
    compared = {
        kind: losses(kind, found.get(kind, {}), wanted, earlier, later) for kind in (NO_CORRECTION, *found)
    }
    kind, helps = choose(compared)
    told = ", ".join(
        f"{name} {np.nanmean(np.array(each) / compared[NO_CORRECTION]):.3f}"
        for name, each in compared.items()
        if name in found
    )
    notes.append(
        f"pinball loss relative to no correction, mean of targets: {told}; a forest is taken where it is"
        f" {FOREST_MARGIN:.0%} better"
    )
    left = [target for target, each in zip(wanted, helps, strict=True) if not each]
    if left:
        notes.append(f"no correction, only offsets, of {', '.join(left)}: none was better")
    return kind, helps


def _calibration(
    kind: str, tensors: Tensors, targets: tuple[str, ...], calibrate: Rows
) -> dict[str, tuple[Offsets, Offsets]]:
    """Offsets of every target of which enough is known, corrected or not."""
    predicted = (
        dict(zip(targets, quantiles(kind, tensors, targets, calibrate), strict=True)) if targets else {}
    )
    none = np.zeros((len(QUANTILES), len(calibrate)), np.float32)
    columns = dict(zip(TARGETS, calibrate.targets.T, strict=True))
    return {
        target: conformal.offsets(column, predicted.get(target, none), calibrate.split)
        for target, column in columns.items()
        if int(np.isfinite(column).sum()) >= conformal.MIN_IN_ALL
    }


def _metrics(
    found: Mapping[str, Tensors],
    wanted: tuple[str, ...],
    targets: tuple[str, ...],
    kind: str,
    calibrate: Rows,
    test: Rows,
) -> dict[str, dict[str, float]]:
    """Of every kind (`network_pinball`, ...) and, without a prefix, of what is exported, on the test rows."""
    metrics: dict[str, dict[str, float]] = {}
    known, wanted_of = calibrate.targets, test.targets
    for name in (NO_CORRECTION, *found):
        before, after = (quantiles(name, found.get(name, {}), wanted, rows) for rows in (calibrate, test))
        for place, target in enumerate(wanted):
            column = TARGETS.index(target)
            modes = np.array(conformal.offsets(known[:, column], before[place], calibrate.split), np.float32)
            said = np.maximum.accumulate(after[place] + modes[test.split.astype(int)].T, axis=0)
            got = scores(wanted_of[:, column], said)
            mine = metrics.setdefault(target, {"rows": float(np.isfinite(wanted_of[:, column]).sum())})
            mine |= {f"{name}_{measure}": value for measure, value in got.items()}
            if name == (kind if target in targets else NO_CORRECTION):
                mine |= got
    return metrics

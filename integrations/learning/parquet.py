"""Chunks from Parquet: only the columns that learning needs, and none of them but ids as Python objects."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from kvferry.integrations.learning.arrow import Batch
from kvferry.integrations.learning.chunk import NO_SET, OTHER_SET, OUR_SET, Bools, Chunk, hashes
from kvferry.integrations.learning.needed import STAGES, STATUSES
from kvferry.integrations.learning.tally import Tally
from kvferry.integrations.log.source import SourceError
from kvferry.policy.correction import TARGETS
from kvferry.policy.features import FEATURE_SET, FEATURES

BATCH = 16_384
_QUANTILES = ("p50", "p90", "p99")
_OUTCOME = ("status", "ttft_s", "itl_s", "e2e_s", "rescued_from", "served_by", "retractions")
_COLUMNS = (
    *("id", "time", "mode", "model_version", "fallback", "features", "feature_set"),
    "catalogue_transfer_s",
    *("chosen.plan", "chosen.mode"),
    *(f"terms.{target}_s.{quantile}" for target in TARGETS for quantile in _QUANTILES),
    *(f"outcome.{name}" for name in _OUTCOME),
    *(f"outcome.stages.{name}" for name in STAGES),
)


def read_columns(path: Path, tally: Tally, at: Callable[[int], None]) -> Iterator[Chunk]:
    """`at` is told how far in the file, about, in bytes. Raises SourceError without pyarrow, or when the file
    is no decision log."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise SourceError("Parquet needs pyarrow: pip install 'kvferry[train]'") from None
    done = 0
    try:
        with pq.ParquetFile(path) as file:
            names = set(file.schema_arrow.names)
            if missing := [name for name in ("id", "time", "chosen") if name not in names]:
                raise SourceError(f"{path} is no decision log: it has no column {missing[0]!r}")
            for batch in file.iter_batches(batch_size=BATCH, columns=list(_COLUMNS)):
                yield _chunk(Batch(batch))
                done += len(batch)
                at(round(path.stat().st_size * done / max(1, file.metadata.num_rows)))
    except (pa.ArrowException, OSError) as error:
        if not done:
            raise SourceError(f"cannot read {path}: {' '.join(str(error).split())}") from None
        tally.reject(f"{path}: row {done + 1}", f"the file ends here: {' '.join(str(error).split())}")


def _chunk(batch: Batch) -> Chunk:
    counts = batch.lengths("features")
    ours = batch.equal("feature_set", FEATURE_SET) & (counts == len(FEATURES))
    named = (counts > 0) & _told(batch, "feature_set")
    said = [batch.floats(f"terms.{target}_s.{name}") for name in _QUANTILES for target in TARGETS]
    chosen = batch.column("chosen.plan", "string")
    stages = [batch.floats(f"outcome.stages.{name}") for name in STAGES]
    return Chunk(
        id_hash=hashes(batch.column("id", "string").fill_null("").to_pylist()),
        time_s=batch.floats("time"),
        split=batch.equal("chosen.mode", "split"),
        acted=~batch.equal("mode", "shadow"),
        status=batch.codes("outcome.status", STATUSES),
        rescued=(batch.lengths("outcome.rescued_from") > 0)
        | (_told(batch, "outcome.served_by") & ~batch.equal("outcome.served_by", chosen)),
        retracted=batch.floats("outcome.retractions") > 0,
        feature_set=np.where(ours, OUR_SET, np.where(named, OTHER_SET, NO_SET)).astype(np.int8),
        features=batch.listed("features", ours, len(FEATURES)),
        predicted_s=np.nan_to_num(np.column_stack(said)).reshape(batch.rows, len(_QUANTILES), len(TARGETS)),
        corrected=~batch.equal("model_version", "structured") & ~_told(batch, "fallback"),
        catalogue_s=np.nan_to_num(batch.floats("catalogue_transfer_s")),
        ttft_s=batch.floats("outcome.ttft_s"),
        itl_s=batch.floats("outcome.itl_s"),
        e2e_s=batch.floats("outcome.e2e_s"),
        stages_s=np.column_stack(stages),
    )


def _told(batch: Batch, name: str) -> Bools:
    return batch.there(name) & ~batch.equal(name, "")

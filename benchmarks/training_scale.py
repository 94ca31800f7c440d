"""How `kvferry train` grows with its log: `python benchmarks/training_scale.py`.

Writes synthetic decision records (Parquet with the columns that training reads, a million a file; and a
smaller number as whole records in JSON lines) and trains on 0.5, 1, 2 and 5 million of them, each time in a
process of its own. Prints wall and CPU seconds, CPU seconds per million and the largest resident size; ends
with 1 when that is over 4 GB. What is measured is 1.4 times what was predicted, with noise, and queues hang
on a feature, so that there is something to learn.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kvferry.integrations.log.codec import write_record
from kvferry.integrations.log.parquet import read_parquet
from kvferry.integrations.log.reader import ReadReport
from kvferry.policy.correction import TARGETS
from kvferry.policy.features import EPSILON_S, FEATURE_SET, FEATURES

MOST_GB = 4.0
PIECE = 100_000
FILE = 1_000_000
START_S = 1.7e9
STAGES = ("ingress_s", "bootstrap_s", "queue_s", "prefill_s", "transfer_s", "alloc_s", "decode_queue_s")


def batch(first: int, count: int) -> pa.RecordBatch:
    """Records `first` .. `first + count`, a tenth of a second apart, every second one split."""
    rng = np.random.default_rng(first)
    split = np.arange(first, first + count) % 2 == 1
    tokens = np.exp(rng.normal(6.5, 1.2, count))
    moved = tokens * 131_072 * split
    shown = {name: rng.uniform(0.0, 2.0, count) for name in FEATURES}
    said = {
        "queue": rng.exponential(0.01, count),
        "prefill": 0.01 + tokens / 20_000,
        "transfer": (0.001 + moved / 10e9) * split,
        "admission": np.zeros(count),
        "itl": 0.01 + tokens * 1e-7,
    }
    said["ttft"] = said["queue"] + said["prefill"] + said["transfer"] + said["itl"] / 2
    shown |= {f"log_{name}_s": np.log(seconds + EPSILON_S) for name, seconds in said.items()}
    shown |= {
        "log_new_tokens": np.log1p(tokens),
        "log_prompt_tokens": np.log1p(tokens),
        "log_moved_bytes": np.log1p(moved),
        "split": split.astype(float),
    }
    off = {name: 1.4 * np.exp(rng.normal(0.0, 0.15, count)) for name in said}
    queue = said["queue"] * off["queue"] * (1.0 + shown["pre_arrivals_per_s"])
    stages = {
        "ingress_s": np.full(count, 0.001),
        "bootstrap_s": pa.array(np.full(count, 0.001), mask=~split),
        "queue_s": queue,
        "prefill_s": said["prefill"] * off["prefill"],
        "transfer_s": pa.array(said["transfer"] * off["transfer"], mask=~split),
        "alloc_s": pa.array(np.zeros(count), mask=~split),
        "decode_queue_s": pa.array(said["itl"] / 2 * off["admission"], mask=~split),
    }
    ttft = queue + said["prefill"] * off["prefill"] + split * said["transfer"] * off["transfer"] + 0.002
    said["admission"] = said["itl"] / 2
    said["repack"] = np.zeros(count)
    features = np.column_stack([shown[name] for name in FEATURES])
    whole = {
        "id": pa.array([f"{number:024x}" for number in range(first, first + count)]),
        "time": START_S + 0.1 * np.arange(first, first + count),
        "reason": _same("queue_gain", count),
        "schema": _same("kvferry.decision.v1", count),
        "mode": _same("live", count),
        "model_version": _same("structured", count),
        "fallback": _same("", count),
        "feature_set": _same(FEATURE_SET, count),
        "features": pa.FixedSizeListArray.from_arrays(features.ravel(), len(FEATURES)).cast(
            pa.list_(pa.float64())
        ),
        "chosen": _struct(
            plan=pa.array(np.where(split, "split:p>d@mooncake", "colocated:c")),
            mode=pa.array(np.where(split, "split", "colocated")),
            prefill=_same("p", count),
            decode=_same("d", count),
        ),
        "terms": _struct(
            **{
                f"{name}_s": _struct(p50=said[name], p90=1.3 * said[name], p99=np.zeros(count))
                for name in TARGETS
            }
        ),
        "outcome": _struct(
            status=_same("ok", count),
            ttft_s=ttft,
            itl_s=said["itl"] * off["itl"],
            e2e_s=ttft + 1.0,
            served_by=_same("", count),
            retractions=np.zeros(count, np.int64),
            rescued_from=pa.array([[]] * count, pa.list_(pa.string())),
            stages=_struct(**stages),
        ),
    }
    return pa.RecordBatch.from_pydict(whole)


def _same(value: str, count: int) -> Any:
    return pa.array([value]).take(pa.array(np.zeros(count, np.int64)))


def _struct(**columns: Any) -> Any:
    arrays = [each if isinstance(each, pa.Array) else pa.array(each) for each in columns.values()]
    return pa.StructArray.from_arrays(arrays, names=list(columns))


def write(folder: Path, records: int) -> Iterator[Path]:
    """Files of up to a million records; those that are there stay."""
    for first in range(0, records, FILE):
        path, count = folder / f"{first:09d}.parquet", min(FILE, records - first)
        if not path.exists():
            with pq.ParquetWriter(path, batch(0, 1).schema, compression="zstd") as writer:
                for start in range(first, first + count, PIECE):
                    writer.write_batch(batch(start, min(PIECE, first + count - start)))
        yield path


def write_lines(path: Path, parquet: Path, records: int) -> None:
    """The first records of a Parquet file as whole records."""
    with path.open("wb") as out:
        for _, record in zip(range(records), read_parquet(parquet, ReadReport()), strict=False):
            out.write(write_record(record) + b"\n")


def trained(sources: list[Path], out: Path) -> dict[str, Any]:
    """One run of the command: seconds, CPU seconds and the largest resident size of its process."""
    command = [sys.executable, "-m", "kvferry.integrations.cli.app", "train", "--json", "--out", str(out)]
    for source in sources:
        command += ["--from", str(source)]
    begun_s = time.perf_counter()
    with tempfile.TemporaryFile() as told:
        process = subprocess.Popen(command, stdout=told)
        _, code, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(code)
        told.seek(0)
        said = told.read()
    if process.returncode:
        raise SystemExit("kvferry train failed")
    answer = json.loads(said)
    return {
        "records": answer["records"]["kept"],
        "version": answer["version"],
        "kind": answer["kind"],
        "ttft_mdape": answer["terms"]["ttft"]["mdape"],
        "wall_s": round(time.perf_counter() - begun_s, 1),
        "cpu_s": round(used.ru_utime + used.ru_stime, 1),
        "peak_gb": round(used.ru_maxrss * 1024 / 1e9, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--millions", type=float, nargs="+", default=[0.5, 1.0, 2.0, 5.0])
    parser.add_argument("--lines", type=int, default=200_000, help="records as JSON lines; 0: none")
    parser.add_argument("--keep", type=Path, help="a folder for the logs, which are removed otherwise")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    worst = 0.0
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for millions in sorted(options.millions):
            place = folder / f"{millions:g}"
            place.mkdir(exist_ok=True)
            found = trained(list(write(place, round(millions * 1e6))), folder / f"model-{millions:g}")
            worst = max(worst, found["peak_gb"])
            show(f"{millions:g} M, Parquet", found, as_json=options.json)
        if options.lines:
            lines = folder / "lines.jsonl"
            first = next(write(folder / f"{min(options.millions):g}", options.lines))
            write_lines(lines, first, options.lines)
            show("JSON lines", trained([lines], folder / "model-lines"), as_json=options.json)
    if worst > MOST_GB:
        raise SystemExit(f"{worst} GB is more than {MOST_GB}")


def show(name: str, found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"log": name, **found}), flush=True)
        return
    per_million = found["cpu_s"] / found["records"] * 1e6
    print(
        f"{name:14} {found['records']:>9,} records {found['wall_s']:7.1f} s {found['cpu_s']:7.1f} CPU s"
        f" ({per_million:5.1f} a million) {found['peak_gb']:5.2f} GB  {found['version']} {found['kind']}"
        f" TTFT {found['ttft_mdape']:.1%}",
        flush=True,
    )


if __name__ == "__main__":
    main()

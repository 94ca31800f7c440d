"""A router, its store and its log before simulated workers, under load: the benchmark's short form."""

import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "simulated_cluster.py"


def test_every_request_is_answered_and_logged_with_both_times(tmp_path: Path) -> None:
    words = ["--workers", "4", "--rate", "50", "--duration", "2", "--policy", "coin(0.5)", "--json"]
    ended = subprocess.run(
        [sys.executable, str(BENCHMARK), *words, "--keep", str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=180,
        check=False,
    )
    answer = json.loads(ended.stdout)
    assert answer["errors"] == {}
    assert ended.returncode == 0
    assert answer["answered"] == answer["sent"] > 60
    log = answer["log"]
    assert log["status"] == {"ok": answer["sent"]}
    assert log["ttft_pairs"] == answer["sent"]
    assert 0.2 < log["split_share"] < 0.8
    for mode in ("split", "colocated"):
        assert log[mode]["predicted_ttft_p50_s"] > 0.0
        assert log[mode]["simulated_ttft_p50_s"] > 0.0

"""What the README promises first."""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median


def test_short_prompts_run_colocated_and_long_ones_split_each_with_a_reason(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kvferry.integrations.cli.app", "local", "demo", "--once", "--json"]
    environment = {**os.environ, "KVFERRY_STATE_DIR": str(tmp_path)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, ran.stderr
    requests = json.loads(ran.stdout)["requests"]
    lengths: dict[str, list[int]] = {"split": [], "colocated": []}
    for record in requests:
        assert record["reason"]
        assert record["outcome"]["status"] == "ok"
        lengths[record["chosen"]["mode"]].append(record["request"]["prompt_tokens"])
    assert median(lengths["colocated"]) < 200
    assert median(lengths["split"]) > 2000
    lines = (tmp_path / "decisions.jsonl").read_text().splitlines()
    logged = [json.loads(line) for line in lines if '"kvferry.decision.v1"' in line]
    assert {record["id"] for record in logged} == {record["id"] for record in requests}

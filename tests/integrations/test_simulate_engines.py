"""Grids of simulations: by processes and by Ray, stopped and gone on with."""

import importlib
import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kvferry.integrations.cli.errors import CommandError
from kvferry.integrations.simulate.engine import Failure, run_here
from kvferry.integrations.simulate.processes import run_processes
from kvferry.integrations.simulate.results import FILE, opened
from kvferry.integrations.simulate.work import Workforce, do
from kvferry.models.simulator.cell import Cell, run_cell

SHORT = ("--workload", "steady", "--rate", "4", "--duration", "8")


def test_a_grid_that_was_killed_goes_on_where_it_stopped(call, grid_file, tmp_path) -> None:  # type: ignore[no-untyped-def]
    out_dir = tmp_path / "out"
    arguments = ("--grid", str(grid_file), "--out", str(out_dir), "--jobs", "1")
    code, whole, _ = call(*arguments, "--json")
    lines = (out_dir / FILE).read_bytes().splitlines(keepends=True)
    assert code == 0
    assert json.loads(whole)["cells"] == len(lines) == 4
    assert json.loads((out_dir / "summary.json").read_text()) == json.loads(whole)
    # As a kill leaves it: two results, and half a line of the third.
    (out_dir / FILE).write_bytes(b"".join(lines[:2]) + lines[2][:40])
    assert call(*arguments, "--json")[1] == whole
    after = (out_dir / FILE).read_bytes().splitlines(keepends=True)
    assert after[:2] == lines[:2]
    assert sorted(after) == sorted(lines)
    # Nothing is left to do: had anything been computed, this line could not have stayed.
    (out_dir / FILE).write_bytes(b"".join(after).replace(b'"requests": ', b'"requests": 9'))
    marked = json.loads(call(*arguments, "--json")[1])
    assert all(row["requests"] >= 90 for each in marked["scenarios"] for row in each["policies"].values())
    code, table, _ = call(*arguments)
    assert code == 0
    assert max(len(line) for line in table.splitlines()) <= 80


def test_a_folder_of_results_has_one_writer_and_no_strangers(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(CommandError, match="another run is writing"), opened(tmp_path):
        pass
    (tmp_path / FILE).write_text("not ours\n")
    with pytest.raises(CommandError, match=r"cells.jsonl, line 1: not a result"), opened(tmp_path):
        pass


def test_a_broken_cell_costs_no_other(cells: list[Cell]) -> None:
    broken = replace(cells[1], policy="psychic")
    found = {cell.key: outcome for cell, outcome in run_here([cells[0], broken, cells[2]])}
    assert isinstance(found[broken.key], Failure)
    assert "unknown policy 'psychic'" in found[broken.key].why  # type: ignore[union-attr]
    assert not isinstance(found[cells[0].key], Failure)
    assert not isinstance(found[cells[2].key], Failure)


# Processes must be able to import what they do.
KILLER = """
import os, signal

def work(cell):
    if cell.seed == 9:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"seed": cell.seed}
"""


def test_a_process_that_dies_is_reported_and_costs_no_other(cells, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "killer.py").write_text(KILLER)
    monkeypatch.syspath_prepend(tmp_path)
    work = importlib.import_module("killer").work
    seeds = [replace(cells[0], seed=seed) for seed in (1, 9, 2, 3)]
    found = {cell.seed: outcome for cell, outcome in run_processes(seeds, 2, work)}
    assert {seed: outcome for seed, outcome in found.items() if seed != 9} == {
        seed: {"seed": seed} for seed in (1, 2, 3)
    }
    assert isinstance(found[9], Failure)
    assert "died" in found[9].why


def test_equal_cells_are_computed_once(cells: list[Cell], tmp_path: Path) -> None:
    twice = [cells[0], replace(cells[0], labels=(("path", "other"),))]
    assert set(do(twice, Workforce(), tmp_path)) == {cells[0].key}
    assert len((tmp_path / FILE).read_text().splitlines()) == 1


def test_without_a_ray_cluster_it_says_so(call, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setitem(sys.modules, "ray", None)
    code, out, err = call(*SHORT, "--engine", "ray")
    assert (code, out) == (1, "")
    assert "kvferry[ray]" in err


def test_a_ray_cluster_that_is_not_there_is_found_out_at_once(call) -> None:  # type: ignore[no-untyped-def]
    """Ray itself would try for minutes."""
    pytest.importorskip("ray", reason="ray is not installed (extra kvferry[ray])")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, out, err = call(*SHORT, "--policy", "kvferry", "--engine", "ray", "--ray-address", address)
    assert (code, out) == (1, "")
    assert f"no Ray cluster at {address}" in err


# In a process of its own: Ray settles on its ways when it is imported, and keeps a token in the home folder.
ON_RAY = """
import json, sys, tempfile
import ray
from kvferry.integrations.simulate.engine import Failure
from kvferry.integrations.simulate.ray_engine import run_ray
from kvferry.models.simulator.grid_file import read_grid
from dataclasses import replace

with tempfile.TemporaryDirectory(prefix="kvf") as folder:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=folder)
    cells = read_grid(sys.argv[1]).cells
    broken = replace(cells[0], policy="psychic")
    found = {cell.key: outcome for cell, outcome in run_ray([*cells, broken])}
    ray.shutdown()
print(json.dumps([
    outcome.why if isinstance(outcome, Failure) else outcome
    for outcome in (found[cell.key] for cell in (*cells, broken))
]))
"""


def test_ray_comes_to_the_same(cells: list[Cell], tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed (extra kvferry[ray])")
    home = tmp_path / "home"
    home.mkdir()
    env = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    env |= {"HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0"}
    words = [sys.executable, "-c", ON_RAY, str(tmp_path / "grid.toml")]
    done = subprocess.run(words, capture_output=True, text=True, env=env, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    *found, broken = json.loads(done.stdout.splitlines()[-1])
    assert "psychic" in broken
    assert [json.dumps(each) for each in found] == [json.dumps(run_cell(cell)) for cell in cells]

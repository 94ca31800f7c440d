"""What the tests of `kvferry simulate` share: a call of the command, and the cells of a small grid."""

from pathlib import Path

import pytest

from kvferry.integrations.cli.app import app
from kvferry.integrations.cli.errors import run
from kvferry.models.simulator.cell import Cell
from kvferry.models.simulator.grid_file import read_grid

GRID = """
duration_s = 6
policies = ["kvferry", "always_split"]
clusters = ["4p4d"]
rates_rps = [3, 5]
[[workload]]
file = "steady"
"""


@pytest.fixture
def call(capsys, monkeypatch):  # type: ignore[no-untyped-def]
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def invoke(*arguments: str) -> tuple[int, str, str]:
        code = run(app, ["simulate", *arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return invoke


@pytest.fixture
def grid_file(tmp_path: Path) -> Path:
    file = tmp_path / "grid.toml"
    file.write_text(GRID)
    return file


@pytest.fixture
def cells(grid_file: Path) -> list[Cell]:
    return list(read_grid(str(grid_file)).cells)

"""The benchmark of learning links: every law that it prints, on a few seeds."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.mark.parametrize("kind", ["merged", "scattered"])
@pytest.mark.parametrize("seed", range(3))
def test_a_new_link_is_known_after_thirty_moves(kind: str, seed: int) -> None:
    from link_learning_parts.fresh import errors

    off = [learned for learned, _ in errors(kind, seed, 60)]
    assert sorted(off[30:])[15] < 0.2
    assert sum(off[30:]) / 30 < 0.5 * sum(off[:5]) / 5


@pytest.mark.parametrize("explore", [0.0, 0.02])
def test_a_link_at_a_tenth_is_noticed_left_and_returned_to(explore: float) -> None:
    from link_learning_parts.degraded import run

    found = run(3, explore=explore)
    assert found.share > 0.05
    assert found.noticed <= 10
    assert found.left <= 20
    assert found.back_s <= 60.0


def test_it_says_whether_the_goals_were_met() -> None:
    command = [sys.executable, str(BENCHMARKS / "link_learning.py"), "--links", "2", "--seeds", "1"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert "Goals" in done.stdout
    assert (done.returncode == 0) == ("NOT met" not in done.stdout)
    assert max(map(len, done.stdout.splitlines())) <= 80

"""The benchmark of learning links, its real half: what it makes of a log, and a machine without wires."""

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvferry.integrations.log.codec import write_record
from kvferry.integrations.log.record import Alternative, Chosen, DecisionRecord, Outcome, Stages, Term, Terms

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MOVED = 1_000_000
WHOLE, SLOW = 0.1, 1.0


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def decision(
    time_s: float, host: str, other: str, believed: float, actual: float, explored: bool = False
) -> DecisionRecord:
    """Of a transfer of `actual` seconds that was believed to take `believed` on host a, and 0.1 on b."""
    plans = {name: f"http://{name}:21000>http://d:1@mooncake" for name in "ab"}
    terms = {"a": Terms(transfer_s=Term(believed)), "b": Terms(transfer_s=Term(0.1))}
    return DecisionRecord(
        id=f"{time_s:g}",
        time=time_s,
        chosen=Chosen(
            f"split:{plans[host]}",
            "split",
            f"http://{host}:21000",
            "http://d:1",
            "mooncake",
            moved_bytes=MOVED,
        ),
        reason="lower_score",
        terms=terms[host],
        alternatives=(Alternative(f"split:{plans[other]}", terms[other], moved_bytes=MOVED),),
        explored=explored,
        outcome=Outcome(stages=Stages(transfer_s=actual)),
    )


def over(times: Sequence[int], believed: float, actual: float) -> list[DecisionRecord]:
    return [decision(time_s, "a", "b", believed, actual) for time_s in times]


def past(times: Sequence[int], believed: float) -> list[DecisionRecord]:
    return [decision(time_s, "b", "a", believed, 0.1) for time_s in times]


def told(records: Sequence[DecisionRecord]) -> object:
    from link_learning_parts.observed import degraded
    from link_learning_parts.phases import Phases

    return degraded(records, Phases(("a", "b"), (1000.0, 1000.0), 100, 200, 300, {}))


def test_a_link_that_is_noticed_left_and_returned_to() -> None:
    before = over(range(0, 100, 2), WHOLE, WHOLE) + past(range(1, 100, 2), WHOLE)
    slow = (
        over(range(100, 103), WHOLE, SLOW) + over(range(103, 105), SLOW, SLOW) + past(range(105, 140), SLOW)
    )
    tried = [*over([140], 0.29, SLOW), decision(141, "a", "b", SLOW, SLOW, explored=True)]
    again = past(range(142, 230), SLOW) + over(range(230, 300), WHOLE, WHOLE)
    found = told(before + slow + tried + again)
    assert found.share == pytest.approx(0.5, abs=0.02)
    assert (found.noticed, found.left, found.tries, found.back_s) == (3, 5, 2, 30)


def test_exploring_is_neither_staying_nor_returning() -> None:
    before = over(range(100), WHOLE, WHOLE)
    away = past(range(100, 105), SLOW) + past(range(106, 112), SLOW) + past(range(112, 300, 2), SLOW)
    explored = [decision(105, "a", "b", SLOW, SLOW, explored=True)]
    explored += [decision(time_s, "a", "b", SLOW, WHOLE, explored=True) for time_s in range(201, 300, 2)]
    found = told(before + away + explored)
    assert (found.left, found.tries, found.back_s) == (0, 1, math.inf)


def test_a_link_that_nobody_leaves() -> None:
    records = [one for n in range(100, 200, 2) for one in over([n], WHOLE, SLOW) + past([n + 1], WHOLE)]
    found = told(over(range(100), WHOLE, WHOLE) + records + over(range(200, 300), WHOLE, WHOLE))
    assert (found.noticed, found.left, found.tries, found.back_s) == (math.inf, math.inf, 0, 0)


def test_logs_that_are_there_are_judged(tmp_path: Path) -> None:
    from link_learning_parts.phases import Phases

    records = over(range(100), 0.12, 0.1) + past(range(100, 200), SLOW) + past(range(200, 300), SLOW)
    (tmp_path / "decisions.jsonl").write_bytes(b"\n".join(map(write_record, records)) + b"\n")
    Phases(("a", "b"), (1000.0, 400.0), 100, 200, 300, {"200": 300}).write(tmp_path)
    command = [sys.executable, str(BENCHMARKS / "link_learning.py"), "--from", str(tmp_path)]
    shown = subprocess.run(command, check=False, capture_output=True, text=True)
    told = subprocess.run([*command, "--json"], check=False, capture_output=True, text=True)
    assert (shown.returncode, told.returncode) == (1, 1)
    assert "NOT met" in shown.stdout
    assert "never" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80
    found = json.loads(told.stdout)
    assert [link["moves"] for link in found["links"]] == [100, 200]
    assert found["links"][0]["error_after"] == pytest.approx(0.2)
    assert found["degraded"]["left"] == 0
    assert found["degraded"]["back_s"] is None


def test_a_machine_without_wires_says_so() -> None:
    command = [sys.executable, str(BENCHMARKS / "link_learning.py"), "--real", "--json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env={"PATH": ""})
    assert done.returncode == 0
    assert json.loads(done.stdout).keys() == {"skipped"}
    assert "skipped" in done.stderr

"""Processes of a grid whose parent was killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

SCRIPT = """
import os, pathlib, sys, time
from dataclasses import dataclass
from kvferry.integrations.simulate.processes import run_processes

@dataclass(frozen=True)
class Sleep:
    file: str
    key: str = "sleep"
    labels: tuple = ()

def sleep(work):
    pathlib.Path(work.file).write_text(str(os.getpid()))
    time.sleep(120)
    return {}

if __name__ == "__main__":
    list(run_processes([Sleep(sys.argv[1])], 1, sleep))
"""


def test_they_end_with_it(tmp_path: Path) -> None:
    script, told = tmp_path / "orphans.py", tmp_path / "pid"
    script.write_text(SCRIPT)
    parent = subprocess.Popen([sys.executable, str(script), str(told)], stderr=subprocess.DEVNULL)
    try:
        child = int(_within(60, lambda: told.read_text() if told.exists() else ""))
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    try:
        assert _within(20, lambda: "" if _runs(child) else "gone") == "gone"
    finally:
        if _runs(child):
            os.kill(child, signal.SIGKILL)


def _within(limit_s: float, look: Callable[[], str]) -> str:
    end_s = time.monotonic() + limit_s
    while not (found := look()):
        assert time.monotonic() < end_s, "nothing happened"
        time.sleep(0.05)
    return str(found)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"

"""The supervisor: nothing below it survives, whoever dies first."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvferry.integrations.sglang.local import supervise

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process groups are read from /proc")

# A child in the group, and one that left it as far as a process can.
FAMILY = "sleep 300 & setsid sleep 300 & echo $! >{stray}; wait"
STUBBORN = "trap '' TERM; while :; do sleep 0.1; done"


def start(script: str, parent: int | None = None) -> tuple["subprocess.Popen[str]", int]:
    argv = [sys.executable, "-I", supervise.__file__, str(parent or os.getpid()), "/bin/sh", "-c", script]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout
    return process, int(process.stdout.readline())


def gone(pid: int, within_s: float = 20) -> bool:
    """Whether the process is gone, or dead and only waiting to be collected."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


def read_pid(path: Path) -> int:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if path.exists() and path.read_text().strip():
            return int(path.read_text())
        time.sleep(0.05)
    raise AssertionError(f"{path} was never written")


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_is_passed_on(code: int) -> None:
    process, _ = start(f"exit {code}")
    assert process.wait(20) == code


def test_a_command_that_does_not_exist_fails() -> None:
    argv = [sys.executable, "-I", supervise.__file__, str(os.getpid()), "/no/such/command"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 127
    assert "/no/such/command" in done.stderr


def test_sigterm_ends_the_group_and_what_left_it(tmp_path: Path) -> None:
    process, group = start(FAMILY.format(stray=tmp_path / "stray"))
    stray = read_pid(tmp_path / "stray")
    process.terminate()
    process.wait(20)
    assert gone(group, 1)
    assert gone(stray, 1)


def test_a_command_that_ignores_sigterm_is_killed() -> None:
    process, group = start(STUBBORN)
    process.terminate()
    assert process.wait(30) == 128 + signal.SIGKILL
    assert gone(group, 1)


def test_orphans_end_when_the_command_has_ended(tmp_path: Path) -> None:
    process, _ = start(f"setsid sleep 300 & echo $! >{tmp_path / 'stray'}; exit 5")
    stray = read_pid(tmp_path / "stray")
    assert process.wait(20) == 5
    assert gone(stray, 1)


def test_a_parent_killed_with_sigkill_takes_everything_along(tmp_path: Path) -> None:
    middle = f"""
import os, subprocess, sys
p = subprocess.Popen([sys.executable, "-I", {supervise.__file__!r}, str(os.getpid()), "/bin/sh", "-c",
    {FAMILY.format(stray=tmp_path / "stray")!r}], stdout=subprocess.PIPE, text=True, start_new_session=True)
print(p.stdout.readline(), flush=True)
p.wait()
"""
    parent = subprocess.Popen([sys.executable, "-c", middle], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    group, stray = int(parent.stdout.readline()), read_pid(tmp_path / "stray")
    parent.kill()
    parent.wait()
    assert gone(group)
    assert gone(stray)


def test_a_supervisor_killed_with_sigkill_takes_the_command_along() -> None:
    process, group = start("exec sleep 300")
    process.kill()
    process.wait()
    assert gone(group)


MAPPING = """
import mmap, sys, time
with open(sys.argv[1], "w+b") as file:
    file.write(bytes(4096)); file.flush()
    memory = mmap.mmap(file.fileno(), 4096)
open(sys.argv[2], "w").write("1"); time.sleep(300)
"""


def test_shared_memory_of_the_command_is_removed(tmp_path: Path) -> None:
    shared = Path(f"/dev/shm/kvferry-test-{os.getpid()}")
    script = f"exec {sys.executable} -c '{MAPPING}' {shared} {tmp_path / 'ready'}"
    process, _ = start(script)
    read_pid(tmp_path / "ready")
    assert shared.exists()
    process.terminate()
    process.wait(20)
    assert not shared.exists()

"""The process between kvferry and one worker: whatever ends kvferry, nothing of the worker survives.

Run as a script, `python supervise.py PARENT_PID COMMAND...`, with the standard library alone. It starts the
command in a process group of its own, prints the group's id, and ends the group (SIGTERM, then SIGKILL) when
asked by SIGTERM, when the parent is gone (also by SIGKILL), or when the command itself has ended. Processes
that left the group are found too, because the supervisor adopts every orphan below it. Exits with the
command's code (128 + signal when a signal ended it).
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

POLL_S = 0.1
GRACE_S = 3.0
LOOK_EVERY_S = 5.0
_SET_PDEATHSIG = 1
_SET_CHILD_SUBREAPER = 36


def main(parent: int, command: list[str]) -> int:
    """Run `command` until it ends or `parent` does; return its exit code."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    me = os.getpid()
    running, started = os.pipe()  # both ends close by themselves when the child becomes the command
    group = os.fork()
    if group == 0:
        _become(libc, command, me)
    os.close(started)
    os.read(running, 1)  # until then the child could outlive us
    print(group, flush=True)
    status: int | None = None
    shared: set[Path] = set()
    looked_s = time.monotonic()
    while status is None and not asked and os.getppid() == parent:
        status = _reap(group)
        if status is None:
            time.sleep(POLL_S)
        if time.monotonic() > looked_s + LOOK_EVERY_S:
            shared |= _shared_memory(group)
            looked_s = time.monotonic()
    status = _end(group, status, shared | _shared_memory(group))
    return 1 if status is None else os.waitstatus_to_exitcode(status)


def _become(libc: ctypes.CDLL, command: list[str], supervisor: int) -> None:
    """Turn the forked child into `command`, tied to the supervisor's life. Never returns."""
    try:
        os.setsid()
        libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != supervisor:
            os._exit(127)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.dup2(2, 1)  # stdout told the group's id; from here on both streams go to the log
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot run {command[0]}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(127)


def _reap(group: int) -> int | None:
    """Collect every ended child; return the wait status of the group's leader if it was among them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == group:
                found = status
    return found


def _end(group: int, status: int | None, shared: set[Path]) -> int | None:
    """End the group and all adopted orphans, remove their shared memory; return the leader's wait status."""
    _signal_all(group, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while _children():
        if time.monotonic() > deadline:
            _signal_all(group, signal.SIGKILL)
        ended = _reap(group)
        status = status if ended is None else ended
        time.sleep(POLL_S / 5)
    for path in shared:
        path.unlink(missing_ok=True)
    return status


def _shared_memory(group: int) -> set[Path]:
    """Find the group's files in /dev/shm, which SGLang leaves behind unless it is given time to drain.

    By inode, because glibc maps a semaphore under a draft name and then renames it.
    """
    inodes: set[str] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getpgid(int(folder.name)) == group:
                fields = (line.split() for line in (folder / "maps").read_text().splitlines())
                inodes |= {field[4] for field in fields if field[5:] and field[5].startswith("/dev/shm/")}
    found: set[Path] = set()
    for path in Path("/dev/shm").glob("*"):
        with contextlib.suppress(OSError):
            if str(path.lstat().st_ino) in inodes:
                found.add(path)
    return found


def _signal_all(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
    for pid in _children():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _children() -> list[int]:
    me = os.getpid()
    return [int(pid) for pid in Path(f"/proc/{me}/task/{me}/children").read_text().split()]


if __name__ == "__main__":
    code = main(int(sys.argv[1]), sys.argv[2:])
    sys.exit(code if code >= 0 else 128 - code)

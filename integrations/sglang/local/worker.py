"""One real SGLang worker on this machine: start it, see whether it is ready, kill it, start it again."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO, Literal

from kvferry.integrations.sglang.local import supervise
from kvferry.integrations.sglang.local.command import worker_command, worker_env
from kvferry.integrations.sglang.local.spec import Role, Transport, WorkerOptions, WorkerSpec

State = Literal["stopped", "starting", "ready", "failed"]

_TAIL_BYTES = 65536
_STOP_S = supervise.GRACE_S + 10


class LocalWorkerError(RuntimeError):
    """A worker could not be started or ended before it was ready; `log_tail` holds its last lines."""

    def __init__(self, message: str, log_tail: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.log_tail = log_tail


class LocalWorker:
    """A worker on fixed ports, alone in its process group, logging to one file."""

    def __init__(
        self,
        name: str,
        spec: WorkerSpec,
        options: WorkerOptions,
        model: Path,
        port: int,
        bootstrap_port: int | None,
        log_path: Path,
    ) -> None:
        self.name = name
        self.spec = spec
        self.options = options
        self.port = port
        self.bootstrap_port = bootstrap_port
        self.log_path = log_path
        self.state: State = "stopped"
        self.started_s: float | None = None
        self._began = 0.0
        self._pid: int | None = None
        self._supervisor: subprocess.Popen[str] | None = None
        self._command = worker_command(spec, options, model, port, bootstrap_port)

    @property
    def role(self) -> Role:
        """The worker's role."""
        return self.spec.role

    @property
    def transport(self) -> Transport | None:
        """What moves its KV cache; None when it is colocated."""
        return self.spec.transport

    @property
    def url(self) -> str:
        """The worker's base URL, without a slash at the end."""
        return f"http://{self.options.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The process id of SGLang's main process, which is also the id of the worker's process group."""
        if self._pid is None:
            raise LocalWorkerError(f"{self.name} has not been started")
        return self._pid

    @property
    def alive(self) -> bool:
        """Whether the worker's process is there; it need not be ready."""
        return self._supervisor is not None and self._supervisor.poll() is None

    def launch(self) -> None:
        """Start the process and return at once; `check` tells when it is ready."""
        if self.alive:
            raise LocalWorkerError(f"{self.name} is already running")
        self.state, self.started_s, self._began = "starting", None, time.monotonic()
        with self.log_path.open("ab") as log:
            self._supervisor = _supervise(self._command, worker_env(self.spec, self.options, os.environ), log)
        pipe = self._supervisor.stdout
        first = pipe.readline() if pipe else ""
        if not first.strip().isdigit():
            self._fail("could not be started")
        self._pid = int(first)

    def check(self, timeout_s: float = 3.0) -> bool:
        """Return whether the worker answers /health; waits at most `timeout_s`.

        Raises LocalWorkerError when its process has ended.
        """
        if not self.alive:
            code = self._supervisor.returncode if self._supervisor else None
            self._fail(f"ended with exit code {code} before it was ready")
        if _answers(self.url + "/health", timeout_s):
            if self.state != "ready":
                self.state, self.started_s = "ready", time.monotonic() - self._began
            return True
        return False

    def wait_ready(self, timeout_s: float = 300.0) -> None:
        """Block until the worker is ready. Raises LocalWorkerError when it ends or time is up."""
        deadline = self._began + timeout_s
        while not self.check():
            if time.monotonic() > deadline:
                self.timed_out(timeout_s)
            time.sleep(0.2)

    def timed_out(self, timeout_s: float) -> None:
        """Raise LocalWorkerError because the worker was not ready in time."""
        self._fail(f"was not ready after {timeout_s:.0f} s")

    def kill(self) -> None:
        """SIGKILL the whole process group, as a crash would, and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._wait()

    def begin_stop(self) -> None:
        """Ask the worker to end, without waiting."""
        if self.alive and self._supervisor:
            self._supervisor.terminate()

    def stop(self) -> None:
        """End the worker (SIGTERM, then SIGKILL) and wait until no process of it is left."""
        self.begin_stop()
        self._wait()

    def restart(self, timeout_s: float = 300.0) -> None:
        """Stop the worker if it still runs, start it again on the same ports and wait until it is ready."""
        self.stop()
        self.launch()
        self.wait_ready(timeout_s)

    def server_info(self) -> dict[str, object]:
        """Return the worker's GET /server_info. Raises OSError when it does not answer."""
        with urllib.request.urlopen(self.url + "/server_info", timeout=10) as answer:
            info: dict[str, object] = json.load(answer)
        return info

    def log_tail(self, lines: int = 20) -> tuple[str, ...]:
        """Return the last lines of the log, empty ones left out."""
        try:
            with self.log_path.open("rb") as log:
                log.seek(max(0, self.log_path.stat().st_size - _TAIL_BYTES))
                text = log.read().decode(errors="replace")
        except OSError:
            return ()
        return tuple(line for line in text.splitlines() if line.strip())[-lines:]

    def _fail(self, what: str) -> None:
        self.state = "failed"
        tail = self.log_tail()
        why = next((line for line in reversed(tail) if "Error" in line or "error:" in line), "")
        why = why or (tail[-1] if tail else "the log is empty")
        raise LocalWorkerError(f"{self.name} ({self.url}) {what}: {why.strip()} (log: {self.log_path})", tail)

    def _wait(self) -> None:
        if self._supervisor is not None:
            try:
                self._supervisor.wait(_STOP_S)
            except subprocess.TimeoutExpired:  # the supervisor itself hangs: its death takes the worker along
                self._supervisor.kill()
                self._supervisor.wait()
            if self._supervisor.stdout:
                self._supervisor.stdout.close()
        if self.state != "failed":
            self.state = "stopped"


def _supervise(command: list[str], env: dict[str, str], log: IO[bytes]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-I", supervise.__file__, str(os.getpid()), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        env=env,
        text=True,
        start_new_session=True,
    )


def _answers(url: str, timeout_s: float) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False

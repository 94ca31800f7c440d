"""A set of real SGLang workers on this machine, started together and torn down together."""

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

from kvferry.integrations.sglang.local.command import missing_requirement
from kvferry.integrations.sglang.local.model import TinyModel, cached_model
from kvferry.integrations.sglang.local.ports import free_ports
from kvferry.integrations.sglang.local.spec import Role, Transport, WorkerOptions, WorkerSpec
from kvferry.integrations.sglang.local.worker import LocalWorker, LocalWorkerError

Progress = Callable[[Sequence[LocalWorker]], None]


class LocalCluster:
    """Workers of one tiny model; a context manager that starts them all and leaves nothing behind.

    `model` is a checkpoint folder (default: the tiny one, made on first use). `log_dir` keeps the logs;
    without it they go to a temporary folder, which is removed at the end unless a worker failed.
    Raises LocalWorkerError when the machine lacks something, naming it.
    """

    def __init__(
        self,
        specs: Sequence[WorkerSpec],
        options: WorkerOptions | None = None,
        *,
        model: Path | None = None,
        log_dir: Path | None = None,
        timeout_s: float = 300.0,
        on_progress: Progress | None = None,
    ) -> None:
        self._specs = list(specs)
        self._options = options or WorkerOptions()
        self._model = model
        self._given_log_dir = log_dir
        self._timeout_s = timeout_s
        self._on_progress = on_progress
        self.log_dir: Path | None = log_dir
        self.workers: tuple[LocalWorker, ...] = ()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(keep_logs=kind is not None)

    def start(self) -> None:
        """Start all workers at once and block until every one is ready.

        When one fails, or anything interrupts the wait, all are torn down before the error goes on.
        """
        if self.workers:
            raise LocalWorkerError("the cluster has been started already")
        if not self._specs:
            raise LocalWorkerError("a cluster needs at least one worker")
        missing = missing_requirement(self._specs)
        if missing:
            raise LocalWorkerError(missing)
        if self.log_dir is None:
            self.log_dir = Path(tempfile.mkdtemp(prefix="kvferry-local-"))
        self.log_dir.mkdir(parents=True, exist_ok=True)
        try:
            self.workers = self._build(self._model or cached_model(TinyModel()), self.log_dir)
            for worker in self.workers:
                worker.launch()
            self._wait_ready()
        except BaseException as error:
            self.stop(keep_logs=isinstance(error, Exception))
            raise

    def stop(self, keep_logs: bool = False) -> None:
        """End all workers together and wait until they are gone. Can be called twice."""
        for worker in self.workers:
            worker.begin_stop()
        for worker in self.workers:
            worker.stop()
        if self._given_log_dir is None and self.log_dir is not None and not keep_logs:
            shutil.rmtree(self.log_dir, ignore_errors=True)
            self.log_dir = None

    def of(self, role: Role, transport: Transport | None = None) -> list[LocalWorker]:
        """Return the workers of a role, and of a transport when one is given."""
        return [w for w in self.workers if w.role == role and transport in (None, w.transport)]

    def _build(self, model: Path, log_dir: Path) -> tuple[LocalWorker, ...]:
        ports = iter(free_ports(2 * len(self._specs), self._options.host))
        numbers: dict[str, count[int]] = {}
        workers = []
        for spec in self._specs:
            kind = "-".join(filter(None, [spec.role, spec.transport]))
            name = f"{kind}-{next(numbers.setdefault(kind, count(1)))}"
            port, spare = next(ports), next(ports)
            bootstrap_port = spare if spec.role == "prefill" else None
            log = log_dir / f"{name}.log"
            workers.append(LocalWorker(name, spec, self._options, model, port, bootstrap_port, log))
        return tuple(workers)

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + self._timeout_s
        waiting = list(self.workers)
        while waiting:
            if self._on_progress:
                self._on_progress(self.workers)
            if time.monotonic() > deadline:
                waiting[0].timed_out(self._timeout_s)
            waiting = [worker for worker in waiting if not worker.check(timeout_s=2.0)]
            time.sleep(0.2)
        if self._on_progress:
            self._on_progress(self.workers)

"""Real SGLang workers on this machine's CPU, some behind slow wires, and `kvferry serve` before them."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

from prediction_parts.wire import Wire

from kvferry.integrations.cli.local import plugin_env
from kvferry.integrations.redis.embedded import EmbeddedValkey
from kvferry.integrations.sglang.local.command import missing_requirement
from kvferry.integrations.sglang.local.model import TinyModel, cached_model
from kvferry.integrations.sglang.local.ports import free_ports
from kvferry.integrations.sglang.local.spec import WorkerOptions, WorkerSpec
from kvferry.integrations.sglang.local.worker import LocalWorker, LocalWorkerError

# With the plugin Mooncake's workers speak NIXL as well, and the decode worker prefills by itself: two workers
# are three plans for every request.
PREFILL, DECODE = WorkerSpec("prefill", "mooncake"), WorkerSpec("decode", "mooncake")
PAGE_TOKENS = 16
KV_TOKENS = 32768
MOST_RUNNING = 16
FAR_PORTS = 21000, 21100
WORKERS_READY_S = 300.0
ROUTER_READY_S = 60.0


@contextmanager
def deployment(
    folder: Path,
    policy: str,
    wires: Sequence[Wire],
    *,
    near: Sequence[WorkerSpec] = (PREFILL, DECODE),
    switches: Mapping[str, str] = MappingProxyType({}),
    flags: Sequence[str] = (),
) -> Iterator[str]:
    """The URL of a router whose log is FOLDER/decisions.jsonl. Workers `near` share this host, and at the far
    end of every wire there is one more prefill worker. `switches` are the plugin's, over those that switch on
    all of it; `flags` are more of the router's.

    Raises LocalWorkerError when a worker, and RuntimeError when the router, does not start.
    """
    if missing := missing_requirement([PREFILL, *near]):
        raise LocalWorkerError(missing)
    with ExitStack() as stack:
        store = EmbeddedValkey()
        asyncio.run(store.start())
        stack.callback(store.stop)
        host = wires[0].here if wires else "127.0.0.1"
        env = {**dict(plugin_env(store.url)), **switches}
        workers = [_Worker(spec, host, env, folder) for spec in near]
        workers += [_Worker(PREFILL, wire.address, env, folder, wire) for wire in wires]
        for worker in workers:
            worker.launch()
            stack.callback(worker.stop)
        for worker in workers:
            worker.wait_ready(WORKERS_READY_S)
        urls = [worker.url for worker in workers]
        yield stack.enter_context(_router(urls, ["--policy", policy, *flags], store.url, folder))


class _Worker(LocalWorker):
    """One that has the plugin, here or at the far end of a wire."""

    def __init__(
        self, spec: WorkerSpec, host: str, env: Mapping[str, str], folder: Path, wire: Wire | None = None
    ) -> None:
        if wire is not None:  # else NIXL would go past it: all of this is one machine's memory
            env = {**env, "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": wire.device}
        options = WorkerOptions(
            host=host,
            page_size=PAGE_TOKENS,
            max_total_tokens=KV_TOKENS,
            max_running_requests=MOST_RUNNING,
            env=tuple(env.items()),
        )
        # nothing else listens in a fresh namespace, whose ports cannot be tried from here
        port, bootstrap_port = FAR_PORTS if wire else free_ports(2, host)
        name = f"{spec.role}-{wire.device}-{wire.mbit_per_s:g}mbit" if wire else spec.role
        bootstrap, log = bootstrap_port if spec.role == "prefill" else None, folder / f"{name}.log"
        super().__init__(name, spec, options, cached_model(TinyModel()), port, bootstrap, log)
        self._command = [*(wire.prefix if wire else ()), *self._command]


@contextmanager
def _router(urls: list[str], flags: list[str], store_url: str, folder: Path) -> Iterator[str]:
    log = folder / "router.log"
    command = [sys.executable, "-m", "kvferry.integrations.cli.app", "serve", "--worker-urls", *urls]
    command += ["--port", "0", "--redis", store_url, *flags]
    command += ["--log-file", str(folder / "decisions.jsonl")]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**os.environ, "KVFERRY_STATE_DIR": str(folder / "state"), "COLUMNS": "1000"},
            start_new_session=True,
        )
    try:
        yield _up(process, log, set(urls))
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _up(process: subprocess.Popen[bytes], log: Path, urls: set[str]) -> str:
    """The router's URL once all workers are in use."""
    end_s = time.monotonic() + ROUTER_READY_S
    while time.monotonic() < end_s and process.poll() is None:
        text = log.read_text(errors="replace")
        found = re.search(r"kvferry \S+ on (http://\S+),", text)
        if found and set(re.findall(r"(\S+): \w+ worker of \S+ is up", text)) >= urls:
            return found.group(1)
        time.sleep(0.1)
    raise RuntimeError(f"the router did not come up: {log.read_text(errors='replace')[-500:]}")

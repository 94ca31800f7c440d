"""The command line and environment of one SGLang worker on the CPU."""

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from kvferry.integrations.sglang.local.cpu_plugin import ENABLE_ENV, TRANSPORT_ENV
from kvferry.integrations.sglang.local.spec import WorkerOptions, WorkerSpec

STUBS = Path(__file__).parent / "stubs"

# CUDA graphs need a GPU. The metrics flags make a worker tell what the router learns
# from; --sleep-on-idle keeps an idle worker at 1-2% of a core.
_FIXED = [
    *("--device", "cpu", "--dtype", "float32"),
    *("--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--disable-cuda-graph", "--sleep-on-idle"),
    *("--enable-metrics", "--enable-request-time-stats-logging", "--enable-cache-report"),
]

_ENV = {
    ENABLE_ENV: "1",
    "SGLANG_USE_CPU_ENGINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
    # A decode worker caches where a prefill worker listens and forgets it after missed heartbeats. By default
    # it misses a prefill that is back on its port within 10 s, and all later requests of the pair time out.
    "SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL": "2",
    "SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE": "1",
    # Needs pinned memory.
    "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX": "0",
    # Mooncake's wheel without CUDA has TCP alone.
    "MOONCAKE_PROTOCOL": "tcp",
    "MC_FORCE_TCP": "1",
}


def worker_command(
    spec: WorkerSpec, options: WorkerOptions, model: Path, port: int, bootstrap_port: int | None
) -> list[str]:
    """Return the argv of a worker; `bootstrap_port` is needed by, and only by, a prefill worker."""
    argv = [sys.executable, "-m", "sglang.launch_server", *_FIXED]
    argv += ["--model-path", str(model), "--host", options.host, "--port", str(port)]
    argv += ["--served-model-name", options.model_name]
    argv += ["--page-size", str(options.page_size)]
    argv += ["--max-total-tokens", str(options.max_total_tokens)]
    argv += ["--max-running-requests", str(options.max_running_requests)]
    argv += ["--context-length", str(options.context_length), "--log-level", options.log_level]
    if not options.overlap:
        argv += ["--disable-overlap-schedule"]
    if spec.role != "colocated":
        argv += ["--disaggregation-mode", spec.role]
        argv += ["--disaggregation-transfer-backend", str(spec.transport)]
    if spec.role == "prefill":
        argv += ["--disaggregation-bootstrap-port", str(bootstrap_port)]
    if spec.role == "decode":
        argv += ["--disaggregation-decode-retraction-backup", "cpu_tensor"]
    return [*argv, *options.extra_args, *spec.extra_args]


def worker_env(spec: WorkerSpec, options: WorkerOptions, base: Mapping[str, str]) -> dict[str, str]:
    """Return `base` with what a CPU worker needs; the import stubs come first on its PYTHONPATH."""
    env = {**base, **_ENV, TRANSPORT_ENV: spec.transport or ""}
    env["SGLANG_HOST_IP"] = env["HOST_IP"] = options.host
    env["SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT"] = str(options.bootstrap_timeout_s)
    env["SGLANG_DISAGGREGATION_WAITING_TIMEOUT"] = str(options.waiting_timeout_s)
    env["PYTHONPATH"] = os.pathsep.join([str(STUBS), *filter(None, [base.get("PYTHONPATH")])])
    return {**env, **dict(options.env)}


def missing_requirement(specs: list[WorkerSpec]) -> str | None:
    """Return in one line what keeps these workers from starting here, or None."""
    if sys.platform != "linux":
        return f"local workers need Linux, not {sys.platform}"
    for module in ("sglang", "torch", "tokenizers", "safetensors"):
        if importlib.util.find_spec(module) is None:
            return (
                f"{module} is not installed in {sys.prefix}: run `make setup` in a kvferry checkout, which "
                "installs SGLang's CPU stack, or use a machine with SGLang (`pip install 'kvferry[sglang]'`)"
            )
    transports = {spec.transport for spec in specs}
    if "mooncake" in transports:
        return _missing_mooncake()
    if "nixl" in transports and importlib.util.find_spec("nixl") is None:
        return "nixl is not installed: run `make setup`, or use --transport mooncake"
    return None


def _missing_mooncake() -> str | None:
    if importlib.util.find_spec("mooncake") is None:
        return "mooncake is not installed: run `make setup`, or use --transport nixl"
    import ctypes

    try:
        ctypes.CDLL("libibverbs.so.1")
    except OSError:
        return (
            "Mooncake needs libibverbs.so.1: install it (Debian, Ubuntu: `apt-get install libibverbs1`), "
            "or use --transport nixl"
        )
    return None

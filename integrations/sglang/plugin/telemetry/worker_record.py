"""What a worker tells of itself: its KV layout as it is in memory, and how to reach it."""

import importlib
import logging
import socket
import time
from typing import Any

from kvferry.integrations.sglang.plugin.wire import WorkerRecord

log = logging.getLogger("kvferry.plugin")

WILDCARDS = ("0.0.0.0", "::", "")


def worker_record(
    scheduler: Any, worker: str, transports: dict[str, int | None], local: bool
) -> WorkerRecord:
    """`worker`: the plugin's instance. Read from the scheduler, not from its arguments, where both tell."""
    args = scheduler.server_args
    model = scheduler.model_config
    mode = scheduler.disaggregation_mode.value
    pool = scheduler.token_to_kv_pool_allocator.get_kvcache()
    page_size = int(scheduler.page_size)
    host, port = str(args.host), int(args.port)
    named = socket.gethostname() if host in WILDCARDS else host
    scheme = "https" if getattr(args, "ssl_certfile", None) else "http"
    return WorkerRecord(
        worker=worker,
        time_s=time.time(),
        url=f"{scheme}://[{named}]:{port}" if ":" in named else f"{scheme}://{named}:{port}",
        host=host,
        port=port,
        role="colocated" if mode == "null" else mode,
        model=str(args.served_model_name or args.model_path),
        sglang=str(importlib.import_module("sglang.version").__version__),
        layers=int(getattr(pool, "layer_num", 0) or model.num_hidden_layers),
        kv_heads=int(model.get_total_num_kv_heads()),
        head_dim=int(model.head_dim),
        v_head_dim=int(model.v_head_dim),
        page_size=page_size,
        dtype=str(pool.dtype).removeprefix("torch."),
        tp=int(args.tp_size),
        pp=int(args.pp_size),
        dp=int(args.dp_size),
        bytes_per_token=bytes_per_token(pool, page_size),
        max_total_tokens=int(scheduler.max_total_num_tokens),
        vocab_tokens=int(model.vocab_size),
        transports=transports,
        local_prefill=local,
    )


def transports_of(scheduler: Any) -> dict[str, int | None]:
    """Name -> bootstrap port, None on a decode worker; none on a colocated one. What the dual transport
    feature has made of it stands on the scheduler."""
    told = getattr(scheduler, "kvferry_transports", None)
    if told is not None:
        return dict(told)
    args, mode = scheduler.server_args, scheduler.disaggregation_mode.value
    if mode == "null":
        return {}
    port = int(args.disaggregation_bootstrap_port) if mode == "prefill" else None
    return {str(args.disaggregation_transfer_backend): port}


def bytes_per_token(pool: Any, page_size: int) -> int:
    """Of what SGLang registers for a move on this rank; 0 for a pool that cannot be moved."""
    try:
        _, _, page_bytes = pool.get_contiguous_buf_infos()
    except (AttributeError, AssertionError, NotImplementedError) as error:
        log.debug("telemetry: this KV pool does not tell its size: %s", error)
        return 0
    return int(sum(page_bytes)) // page_size

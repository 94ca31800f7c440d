"""From a worker's own answers to a `Worker` and its `Load`."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from kvferry.integrations.sglang.plugin_info import PluginInfo
from kvferry.models.model_catalogue import UnknownModelError, find_model, find_shape
from kvferry.models.speed_catalogue import UnknownSpeedError, find_speed
from kvferry.policy.kvshape import KVShape, element_bytes
from kvferry.policy.layout import KVLayout, LayoutOrder
from kvferry.policy.worker import Role, Speed, Worker

_ROLES = {"null": Role.COLOCATED, "prefill": Role.PREFILL, "decode": Role.DECODE}
UNLIMITED = 1 << 20
CHUNK_OFF_TOKENS = 1 << 20
# Before its counters say otherwise, a worker without a known GPU is taken to be this fast.
PRIOR = Speed()


class NotAWorkerError(ValueError):
    """The server at that URL does not answer as an SGLang worker does."""


def worker_of(
    url: str, info: Mapping[str, Any], loads: Mapping[str, Any], bootstrap_port: int | None = None
) -> Worker:
    """Read GET /server_info and GET /v1/loads; `bootstrap_port` overrides what the worker tells.

    A port that was given for another than the worker's own is one mapped through to it: nobody knows where
    the port of its second transport would be, so that transport is left out.
    Raises NotAWorkerError, naming the field, when something that a decision needs is missing.
    """
    mode = str(info.get("disaggregation_mode", ""))
    if mode not in _ROLES:
        raise NotAWorkerError(f"{url}/server_info: disaggregation_mode is {mode!r}")
    role = _ROLES[mode]
    states = info.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
    transport = info.get("disaggregation_transfer_backend")
    if role is not Role.COLOCATED and not transport:
        raise NotAWorkerError(f"{url}/server_info: disaggregation_transfer_backend is missing")
    model = str(info.get("served_model_name") or info.get("model_path") or "")
    dtype = _dtype(info, state)
    tp = _int(info, "tp_size", 1)
    attention_tp = tp
    if info.get("enable_dp_attention"):
        attention_tp = max(1, tp // _int(info, "dp_size", 1))
    shape = _shape(info, model, loads, dtype)
    host = urlsplit(url).hostname or url
    ranks = loads.get("loads") or [{}]
    slots = _int(state, "effective_max_running_requests_per_dp", 0) or _int(info, "max_running_requests", 256)
    worker = Worker(
        id=url,
        url=url,
        role=role,
        model=model,
        shape=shape,
        layout=KVLayout(
            page_size=_int(info, "page_size", 1),
            dtype=dtype,
            tp=attention_tp,
            pp=_int(info, "pp_size", 1),
            dp=_int(info, "dp_size", 1),
            cp=_int(info, "attn_cp_size", 1),
            dcp=_int(info, "dcp_size", 1),
            mla=shape.mla,
            order=LayoutOrder.PAGE_FIRST
            if info.get("enable_page_major_kv_layout")
            else LayoutOrder.LAYER_FIRST,
        ),
        bootstrap_host=host,
        bootstrap_port=(bootstrap_port or _int(info, "disaggregation_bootstrap_port", 8998))
        if role is Role.PREFILL
        else None,
        host=node_of(host),
        # /server_info tells one rank's room, /v1/loads that of each
        max_total_tokens=sum(_int(rank, "max_total_num_tokens", 0) for rank in ranks)
        or _int(info, "max_total_num_tokens", UNLIMITED) * len(ranks),
        max_running_requests=slots * len(ranks),
        context_length=_int(info, "context_length", 0) or _int(info, "max_req_input_len", UNLIMITED),
        speed=_prior(model, loads, tp, info),
        facts={
            "version": str(info.get("version", "")),
            "gpu": str(loads.get("accelerator") or ""),
            "rdma": "yes" if info.get("disaggregation_ib_device") else "",
            "caches_prefixes": _caches(role, info),
            "model_path": str(info.get("model_path") or ""),
        },
    )
    return with_plugin(worker, info, bootstrap_port)


def with_plugin(worker: Worker, info: Mapping[str, Any], bootstrap_port: int | None = None) -> Worker:
    """The same worker with what its plugin does now; arguments as of `worker_of`."""
    plugin = PluginInfo.of(info)
    started_with = str(info.get("disaggregation_transfer_backend"))
    transports, ports = _transports(worker.role, started_with, plugin, info, bootstrap_port)
    local = worker.role is Role.DECODE and plugin.on("local_prefill")
    instances = ",".join(plugin.instances) if plugin.on("telemetry") else ""
    return dataclasses.replace(
        worker,
        transports=transports,
        bootstrap_ports=ports,
        local_prefill=local,
        mixes_chunks=local or bool(info.get("enable_mixed_chunk")),
        facts={**worker.facts, "plugin": plugin.version, "instances": instances},
    )


def snapshot_times(answer: Mapping[str, Any]) -> Sequence[float]:
    """When each DP rank took its snapshot, Unix seconds on the worker's clock."""
    return [float(rank.get("timestamp") or 0.0) for rank in answer.get("loads") or []]


def _transports(
    role: Role, started_with: str, plugin: PluginInfo, info: Mapping[str, Any], given_port: int | None
) -> tuple[tuple[str, ...], dict[str, int]]:
    """The worker's transports, the one it was started with first, and where a prefill worker serves each."""
    if role is Role.COLOCATED:
        return (), {}
    told = plugin.features.get("dual_transport", {}).get("transports")
    if not plugin.on("dual_transport") or not isinstance(told, Mapping) or started_with not in told:
        return (started_with,), {}
    names = (started_with, *sorted(str(name) for name in told if name != started_with))
    if role is Role.DECODE:
        return names, {}
    ports = {name: port for name in names if (port := _int(told, name, 0))}
    if started_with not in ports or given_port not in (None, ports[started_with]):
        return (started_with,), {}
    return tuple(name for name in names if name in ports), ports


def _prior(model: str, loads: Mapping[str, Any], tp: int, info: Mapping[str, Any]) -> Speed:
    chunk = _int(info, "chunked_prefill_size", 8192)
    chunk_tokens = chunk if chunk > 0 else CHUNK_OFF_TOKENS
    gpu = loads.get("accelerator")
    if gpu:
        try:
            known = find_speed(model, str(gpu), tp)
        except UnknownSpeedError:
            pass
        else:
            return dataclasses.replace(known.speed, chunk_tokens=chunk_tokens)
    return dataclasses.replace(PRIOR, chunk_tokens=chunk_tokens)


def _shape(info: Mapping[str, Any], model: str, loads: Mapping[str, Any], dtype: str) -> KVShape:
    """By name, by the model's config.json where this host has it, else from the worker's own KV memory."""
    path = str(info.get("model_path") or "")
    for name in (model, path):
        try:
            return find_model(name).shape
        except UnknownModelError:
            continue
    try:
        return find_shape(path)
    except (UnknownModelError, ValueError, OSError):
        pass
    ranks = loads.get("loads") or [{}]
    memory = ranks[0].get("memory") or {}
    capacity = _int(memory, "token_capacity", 0)
    gib = float(memory.get("kv_cache_gb") or 0.0)
    if not capacity or not gib:
        raise NotAWorkerError(
            f"model {model!r} is not in the catalogue, has no config.json here, and the worker tells no KV "
            "memory: describe it in a [[model]] table of a --config file"
        )
    bytes_per_token = gib * (1 << 30) / capacity
    head_dim = max(1, round(bytes_per_token / element_bytes(dtype) / 2))
    return KVShape(layers=1, kv_heads=1, head_dim=head_dim, name=model, attention="from KV memory")


def _dtype(info: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    for name in (info.get("kv_cache_dtype"), info.get("dtype"), state.get("dtype")):
        if name and name != "auto":
            return str(name).removeprefix("torch.")
    return "bfloat16"


def _caches(role: Role, info: Mapping[str, Any]) -> str:
    if info.get("disable_radix_cache"):
        return ""
    if role is Role.DECODE and not info.get("disaggregation_decode_enable_radix_cache"):
        return ""
    return "yes"


def node_of(host: str) -> str:
    """A worker's host by its URL: links are between those."""
    return "localhost" if host in ("127.0.0.1", "::1", "localhost") or host.startswith("127.") else host


def _int(info: Mapping[str, Any], name: str, default: int) -> int:
    value = info.get(name)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else default

"""A decode worker that prefills by itself, as its tests drive it and look into it."""

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from kvferry.integrations.sglang.local.worker import LocalWorker
from kvferry.integrations.sglang.plugin.wire import LOCAL_MARK

# Beside the product's plugin: after every step each KV slot has one owner, and a file beside this one forces
# retraction (PORT.retract) or breaks local prefill (PORT.break, which names the part).
PROBE = """
import os, sys
from pathlib import Path

HERE = Path(__file__).parent
SEEN = {"steps": 0, "wrong": []}


def look(plan, scheduler, running_batch=None):
    import torch
    from sglang.srt.managers import scheduler as module
    port = scheduler.server_args.port
    module.TEST_RETRACT = (HERE / f"{port}.retract").exists()
    feature = getattr(scheduler, "kvferry_local_prefill", None)
    if feature and (HERE / f"{port}.break").exists():
        setattr(feature.state, (HERE / f"{port}.break").read_text(), None)
    transfers, last = scheduler.disagg_decode_transfer_queue, scheduler.last_batch
    held = [*plan.running_batch.reqs, *scheduler.waiting_queue, *(t.req for t in transfers.queue)]
    held += plan.batch_to_run.reqs if plan.batch_to_run else []
    held += [scheduler.chunked_req] if scheduler.chunked_req else []
    held += [r for r in last.reqs if not r.finished()] if last and last.forward_mode.is_extend() else []
    owners = list({id(r): r for r in held if r.kv.holds_kv}.values())
    pool = scheduler.req_to_token_pool
    rows = {r.kv.req_pool_idx for r in owners}
    slots = [
        pool.req_to_token[r.kv.req_pool_idx, r.kv.cache_protected_len : r.kv.kv_allocated_len] for r in owners
    ]
    flat = torch.cat(slots) if slots else torch.zeros(0)
    SEEN["steps"] += 1
    wrong = []
    if len(rows) != len(owners) or flat.numel() != torch.unique(flat).numel():
        wrong.append("two owners")
    free = pool.available_size() + transfers.num_pending_deferred_releases()
    if free + len(rows) != pool._alloc_size - 1:
        wrong.append(f"{free} rows free, {len(rows)} held of {pool._alloc_size - 1}")
    if len(plan.running_batch.reqs) > scheduler.max_running_requests:
        wrong.append("too many running")
    if wrong and len(SEEN["wrong"]) < 5:
        SEEN["wrong"] += wrong


def tell(result, *_, **__):
    result.internal_state["probe"] = SEEN


def load():
    if "sglang.srt.managers.scheduler" not in sys.modules:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    step = "SchedulerDisaggregationDecodeMixin.get_next_disagg_decode_batch_to_run"
    HookRegistry.register("sglang.srt.disaggregation.decode." + step, look, HookType.AFTER)
    state = "internal_state.SchedulerInternalStateController.get_internal_state"
    HookRegistry.register("sglang.srt.managers.scheduler_components." + state, tell, HookType.AFTER)
"""


@dataclass(frozen=True, slots=True)
class Decode:
    """The decode worker under test, with the workers beside it."""

    session: aiohttp.ClientSession
    worker: LocalWorker
    prefill: LocalWorker
    reference: LocalWorker
    switches: Path
    caches: bool

    async def local(self, ids: list[int], tokens: int, **more: Any) -> dict[str, Any]:
        return await self.ok(self.worker, body(ids, tokens, **more) | {LOCAL_MARK: True})

    async def split(self, ids: list[int], tokens: int, **more: Any) -> dict[str, Any]:
        room = {
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": self.prefill.bootstrap_port,
            "bootstrap_room": random.getrandbits(62),
        }
        sent = body(ids, tokens, **more) | room
        _, answer = await asyncio.gather(self.ok(self.prefill, sent), self.ok(self.worker, sent))
        return answer

    async def expected(self, ids: list[int], tokens: int, **more: Any) -> dict[str, Any]:
        return await self.ok(self.reference, body(ids, tokens, **more))

    async def ok(self, worker: LocalWorker, sent: dict[str, Any], path: str = "/generate") -> Any:
        status, answer = await self.post(worker, sent, path)
        assert status == 200, (worker.name, status, answer)
        return answer

    async def post(self, worker: LocalWorker, sent: Any, path: str = "/generate") -> tuple[int, Any]:
        async with self.session.post(worker.url + path, json=sent) as answer:
            return answer.status, await answer.json()

    async def tells(self) -> dict[str, Any]:
        async with self.session.get(self.worker.url + "/server_info") as answer:
            state: dict[str, Any] = (await answer.json())["internal_states"][0]
        return state

    async def local_prefill(self) -> dict[str, Any]:
        told: dict[str, Any] = (await self.tells())["kvferry"]["features"]["local_prefill"]
        return told

    async def load(self) -> dict[str, Any]:
        async with self.session.get(self.worker.url + "/v1/loads") as answer:
            load: dict[str, Any] = (await answer.json())["loads"][0]
        return load

    async def comes_to_rest(self) -> None:
        """Nothing runs, waits or is held; the scheduler, which checks itself for leaks when idle, lives."""
        for _ in range(150):
            load = await self.load()
            left = {key: load[f"num_{key}"] for key in ("running_reqs", "waiting_reqs", "used_tokens")}
            if self.caches and not left["running_reqs"] and not left["waiting_reqs"]:
                async with self.session.post(self.worker.url + "/flush_cache"):
                    pass
            if not any(left.values()):
                break
            await asyncio.sleep(0.1)
        assert not any(left.values()), left
        async with self.session.get(self.worker.url + "/health") as answer:
            assert answer.status == 200
        assert (await self.tells())["probe"]["wrong"] == []

    def switch(self, name: str, on: bool, text: str = "") -> None:
        file = self.switches / f"{self.worker.port}.{name}"
        if on:
            file.with_suffix(".new").write_text(text)
            file.with_suffix(".new").rename(file)
        else:
            file.unlink()


def body(ids: list[int], tokens: int, **more: Any) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    return {"input_ids": ids, "sampling_params": sampling} | more


def write_probe(folder: Path) -> Path:
    """The probe as a plugin that SGLang finds when `folder` is on its path."""
    (folder / "kvferry_probe.py").write_text(PROBE)
    info = folder / "kvferry_probe-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kvferry-probe\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\nkvferry_probe = kvferry_probe:load\n")
    return folder

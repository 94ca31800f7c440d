"""What the router tells about itself: health, metrics, models, and /kvferry/."""

import asyncio
import dataclasses
import time
from typing import Any

import msgspec
from aiohttp import web

from kvferry.integrations.sglang.errors import ApiError
from kvferry.integrations.sglang.ferry import Ferry
from kvferry.integrations.sglang.telemetry_unknown import unknown
from kvferry.models.paths.probed import Probed
from kvferry.policy.worker import Worker

KEEPALIVE_S = 15.0


def add_routes(app: web.Application, ferry: Ferry) -> None:
    """GET routes."""
    views = _Views(ferry)
    app.on_shutdown.append(views.shutdown)
    app.router.add_get("/health", views.health)
    app.router.add_get("/ready", views.ready)
    app.router.add_get("/metrics", views.metrics)
    app.router.add_get("/v1/models", views.models)
    app.router.add_get("/kvferry/workers", views.workers)
    app.router.add_get("/kvferry/links", views.links)
    app.router.add_get("/kvferry/models", views.learned)
    app.router.add_get("/kvferry/explain/{id}", views.explain)
    app.router.add_get("/kvferry/decisions", views.decisions, allow_head=False)


class _Views:
    def __init__(self, ferry: Ferry) -> None:
        self.ferry = ferry

    async def shutdown(self, _: web.Application) -> None:
        """Those who watch would hold up the end."""
        self.ferry.recent.close()

    async def health(self, _: web.Request) -> web.Response:
        """The router lives; `store` says whether decisions reach Redis or wait on disk."""
        return _json({"status": "ok", "store": "up" if self.ferry.sink.up else "down"})

    async def ready(self, _: web.Request) -> web.Response:
        """200 when some request could be run now, else 503."""
        fleet = self.ferry.fleet
        plans = {model: len(fleet.cluster(model).candidates.plans) for model in fleet.models()}
        if not any(plans.values()):
            down = [f"{m.worker.id} is down: {m.why_down}" for m in fleet.members.values() if m.why_down]
            why = "; ".join(down) or "no worker has answered yet, or a pair lacks its other half"
            raise ApiError(f"not ready: no plan can run a request now: {why}", status=503)
        return _json({"status": "ready", "plans": plans})

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self.ferry.metrics.text(), content_type="text/plain", charset="utf-8")

    async def models(self, _: web.Request) -> web.Response:
        """As the workers serve them."""
        data = [
            {"id": name, "object": "model", "created": int(time.time()), "owned_by": "sglang", "root": name}
            for name in self.ferry.fleet.models()
        ]
        return _json({"object": "list", "data": data})

    async def workers(self, _: web.Request) -> web.Response:
        """Workers, their loads, and what this router has in flight on each."""
        fleet = self.ferry.fleet
        rows = []
        for member in fleet.members.values():
            row = _worker(member.worker)
            own = fleet.book.now.get(member.worker.id)
            row["in_flight"] = dataclasses.asdict(own) if own else {}
            row["load_age_s"] = fleet.clock() - member.worker.load.time_s
            row["why_down"] = member.why_down if not member.worker.healthy else ""
            row["prefix_blocks"] = len(member.prefixes)
            silence = fleet.silence(member.worker.id)
            row["plugin"] = {
                "version": member.plugin.version,
                "features": member.plugin.features,
                "telemetry": silence or "heard",
            }
            row["unknown"] = unknown(member.worker, silence)
            kind = "none" if not member.caches_prefixes else "events" if member.kv else "history"
            row["prefix"] = {"kind": kind} | (member.kv.describe() if member.kv else {})
            rows.append(row)
        return _json({"workers": rows})

    async def links(self, _: web.Request) -> web.Response:
        """Every pair's links, moves on them now, how slow they have shown to be (the factor on the
        catalogue's or the probe's bytes and descriptors), what a probe found there and how long ago, and
        paths left alone after a failure."""
        fleet = self.ferry.fleet
        rows = []
        for model in fleet.models():
            cluster = fleet.cluster(model)
            state, links = cluster.state, cluster.candidates.links
            for link, moves, slow in zip(links, state.moves, state.link_slowness, strict=False):
                now = {"moves_in_flight": int(moves), "slowness": round(float(slow), 3)}
                probe = _told(fleet.probe_of(link))
                rows.append({**dataclasses.asdict(link), **now, "probe": probe})
        return _json({"links": rows, "open_breakers": fleet.breakers.open()})

    async def learned(self, _: web.Request) -> web.Response:
        """Learned models: versions, roles, and how the arms fare."""
        return _json(await self.ferry.models.describe() if self.ferry.models is not None else {})

    async def explain(self, request: web.Request) -> web.Response:
        """One recent request's record: what was decided, why, and what then happened."""
        record = self.ferry.recent.get(request.match_info["id"])
        if record is None:
            raise ApiError(
                f"no recent request has id {request.match_info['id']!r}: older ones are in the log "
                "(kvferry logs explain)",
                status=404,
                kind="invalid_request_error",
            )
        return _json(record)

    async def decisions(self, request: web.Request) -> web.StreamResponse:
        """Finished requests as server-sent events, as they come."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        queue = self.ferry.recent.watch()
        try:
            while True:
                try:
                    async with asyncio.timeout(KEEPALIVE_S):
                        record = await queue.get()
                    if record is None:
                        return response
                    await response.write(b"data: " + msgspec.json.encode(record) + b"\n\n")
                except TimeoutError:
                    await response.write(b": still here\n\n")
        except ConnectionResetError:
            return response
        finally:
            self.ferry.recent.unwatch(queue)


def _worker(worker: Worker) -> dict[str, Any]:
    row = dataclasses.asdict(worker)
    row["facts"] = dict(worker.facts)
    return row


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def _told(probe: Probed | None) -> dict[str, Any] | None:
    if probe is None:
        return None
    return {
        "claimed_class": probe.claimed_class,
        "met": probe.met,
        "verdict": probe.verdict,
        "measured_s": probe.measured_s,
        "age_s": round(max(0.0, time.time() - probe.seen_s)),
    }

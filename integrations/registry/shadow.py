"""Decisions of the shadow: made and logged when the request has ended, so that none waits for them."""

import asyncio
import logging
import time
from dataclasses import dataclass, field

import msgspec

from kvferry.integrations.log.convert import record_of
from kvferry.integrations.log.record import DecisionRecord
from kvferry.integrations.redis.sink import Sink
from kvferry.integrations.registry.arms import Arms, Model
from kvferry.policy.base import Policy
from kvferry.policy.cluster import Cluster
from kvferry.policy.decision import NoPlanError
from kvferry.policy.plan import Split
from kvferry.policy.request import Request
from kvferry.policy.worker import Role

log = logging.getLogger("kvferry.models")


@dataclass(slots=True, eq=False)
class Shadows:
    """A shadow's record, in the stream and the log file, has the id of what acted, and no outcome."""

    policy: Policy
    arms: Arms
    sink: Sink
    _waiting: dict[str, tuple[Model, DecisionRecord, Request, Cluster]] = field(default_factory=dict)

    def decided(self, record: DecisionRecord, request: Request, cluster: Cluster) -> None:
        """`ended` is to be called for every one; `cluster` is what the decision was made from."""
        shadow = self.arms.running.shadow
        if shadow is not None:
            self._waiting[record.id] = (shadow, record, request, cluster)

    def ended(self, request_id: str) -> None:
        """The request has its answer, or will not get one."""
        waiting = self._waiting.pop(request_id, None)
        if waiting is not None:
            asyncio.get_running_loop().call_soon(self._decide, *waiting)

    def _decide(self, shadow: Model, live: DecisionRecord, request: Request, cluster: Cluster) -> None:
        try:
            begun = time.perf_counter()
            decision = self.policy.decide(request, shadow.seen(cluster))
            took_s = time.perf_counter() - begun
            plan, workers = decision.plan, cluster.candidates
            decoder = plan.decode if isinstance(plan, Split) else plan.worker
            record = record_of(
                request,
                decision,
                time_s=live.time,
                router=live.router,
                decide_us=took_s * 1e6,
                endpoint=live.request.endpoint,
                stream=live.request.stream,
                on_decode=workers.workers[workers.index[decoder]].role is Role.DECODE,
                mode="shadow",
            )
        except NoPlanError:
            return  # what acted had one: the policy draws differently
        except Exception:
            log.exception(
                "the shadow %s cannot decide %s: the request itself was served", shadow.version, live.id
            )
            return
        told = msgspec.structs.replace(live.request, cached_tokens=record.request.cached_tokens)
        record = msgspec.structs.replace(record, request=told)
        self.sink.decision(record)
        self.sink.joined(record)

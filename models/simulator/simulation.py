"""One workload on one simulated cluster under one policy."""

import math
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

from kvferry.models.simulator.engine import Engine
from kvferry.models.simulator.events import Events
from kvferry.models.simulator.job import Job
from kvferry.models.simulator.ledger import Ledger
from kvferry.models.simulator.network import Move
from kvferry.models.simulator.oracle import Foresight
from kvferry.models.simulator.run import Run
from kvferry.models.simulator.spec import Change, ClusterSpec, PathChange, SLORule, Watch, WorkerChange
from kvferry.models.simulator.trip import Trip
from kvferry.models.simulator.view import RouterView
from kvferry.models.simulator.world import StepsOf, World, catalogue_steps
from kvferry.models.workload.base import Workload
from kvferry.policy.base import Policy
from kvferry.policy.decision import NoPlanError
from kvferry.policy.plan import Split

MAX_TRIES = 3
# What is not answered so long after the last arrival counts as failed.
DRAIN_S = 3600.0


def simulate(
    cluster: ClusterSpec,
    workload: Workload,
    policy: Policy,
    *,
    seed: int = 0,
    slo: SLORule | None = None,
    changes: Sequence[Change] = (),
    watch: Watch | None = None,
    lost_limit: float | None = None,
    steps_of: StepsOf = catalogue_steps,
) -> Run:
    """Every request to its end, by `policy`; the same arguments give the same Run.

    `lost_limit`: stop once more than this share of requests has certainly missed an objective. `watch` is
    told about progress. Raises ConfigError for a path class nobody knows and UnknownStepsError for a GPU
    that nobody measured.
    """
    simulation = Simulation(cluster, workload, policy, seed, slo or SLORule(), watch, lost_limit, steps_of)
    for change in changes:
        simulation.events.at(change.time_s, simulation.change, change)
    return simulation.run()


class Simulation:
    """The hooks of all engines, and the router's way from an arrival to its end."""

    def __init__(
        self,
        cluster: ClusterSpec,
        workload: Workload,
        policy: Policy,
        seed: int,
        slo: SLORule,
        watch: Watch | None,
        lost_limit: float | None,
        steps_of: StepsOf,
    ) -> None:
        self.events = Events()
        self.cluster = cluster
        self.workload = workload
        self.policy = policy
        self.seed = seed
        self.slo = slo
        self.world = World(cluster, self.events, self, seed, workload.block_tokens, steps_of)
        self.view = RouterView(cluster, self.events, slo, workload.block_tokens, seed)
        self.ledger = Ledger(len(workload))
        self._foresight = Foresight(self.world) if policy.name == "oracle" else None
        self._trips: dict[int, Trip] = {}
        self._unanswered: deque[Trip] = deque()
        self._met: dict[tuple[int, int], float] = {}
        self._polling = False
        self._ended_s = 0.0
        self._ended = 0
        self._lost = 0
        self._lost_limit = math.inf if lost_limit is None else lost_limit * len(workload)
        self._watch = watch
        self._arrivals = workload.arrival_s.tolist()
        self._prompts = workload.prompt_tokens.tolist()
        self._outputs = workload.output_tokens.tolist()
        self._asked = workload.max_new_tokens.tolist()

    def run(self) -> Run:
        if self._arrivals:
            self.events.at(self._arrivals[0], self._arrive, 0)
            self.events.run(self._arrivals[-1] + DRAIN_S)
        engines = self.world.engines
        return self.ledger.run(
            policy=self.policy.name,
            seed=self.seed,
            workers=tuple(engine.spec.id for engine in engines),
            workload=self.workload,
            retractions=sum(engine.retractions for engine in engines),
            engine_steps=sum(engine.steps_done for engine in engines),
            events=self.events.done,
            end_s=self.events.now_s,
            aborted=self._lost > self._lost_limit,
        )

    def change(self, change: Change) -> None:
        """A scheduled event happens."""
        if isinstance(change, PathChange):
            self.world.change(change)
            return
        assert isinstance(change, WorkerChange)
        place = self.world.index[change.worker]
        engine = self.world.engines[place]
        if change.alive == engine.alive:
            return
        if change.alive:
            engine.revive()  # its router learns of it by the next poll
            return
        engine.die()
        self._met = {pair: met_s for pair, met_s in self._met.items() if place not in pair}
        cut = [trip for trip in self._trips.values() if trip.needs(place)]
        if cut:  # their connections break
            self.view.down(place)
        for trip in cut:
            if not trip.ended and trip.needs(place):  # one that is given up can take others with it
                self._again(trip, change.worker)

    # What engines tell

    def granted(self, engine: Engine, job: Job) -> None:
        trip = self._trips[job.row]
        carriage, path = trip.carriage, self.world.path
        assert carriage is not None
        assert trip.prefill is not None
        pair = (trip.pre, trip.dec)
        met_s = self._met.setdefault(pair, self.events.now_s + path.first_contact_s)
        trip.skip_tokens = job.cached_tokens
        moved_bytes = (trip.request.prompt_tokens - job.cached_tokens) * carriage.wire_bytes
        closing_s = path.alpha_s + path.handoff_s + moved_bytes * carriage.repack_s_per_byte
        source, sink = self.world.sends[trip.pre], self.world.receives[trip.dec]
        trip.move = Move(self.events, source, sink, closing_s, partial(self._moved, trip))
        self.events.at(max(self.events.now_s, met_s), self._submit, trip, trip.prefill)

    def chunk(self, engine: Engine, job: Job, tokens: int) -> None:
        trip = self._trips.get(job.row)
        if trip is None or trip.prefill is not job:
            return
        carriage, move = trip.carriage, trip.move
        assert carriage is not None
        assert move is not None
        spared = min(tokens, trip.skip_tokens)
        trip.skip_tokens -= spared
        fresh = tokens - spared
        descriptors = carriage.merged_descriptors + fresh * carriage.descriptors_per_token
        move.offer(fresh * carriage.wire_bytes, descriptors * carriage.gamma_s)

    def first_token(self, engine: Engine, job: Job) -> None:
        trip = self._trips.get(job.row)
        if trip is None or trip.job is not job:
            return
        self.view.first_token(trip)
        ttft_s = self.events.now_s - trip.arrival_s
        self.ledger.first_token(trip.row, ttft_s)
        if ttft_s > trip.request.slo.ttft_s:
            self._lose(trip)

    def finished(self, engine: Engine, job: Job) -> None:
        trip = self._trips.get(job.row)
        if trip is None:
            return
        if trip.prefill is job:
            carriage, move = trip.carriage, trip.move
            assert carriage is not None
            assert move is not None
            trip.computed_s = self.events.now_s
            in_window = min(float(trip.request.prompt_tokens), carriage.window_tokens)
            move.offer(in_window * carriage.window_wire_bytes + carriage.fixed_bytes, last=True)
        elif trip.job is job:
            self._end(trip)

    def failed(self, engine: Engine, job: Job) -> None:
        trip = self._trips.get(job.row)
        if trip is not None:
            self._again(trip, engine.spec.id)

    # The router's way

    def _arrive(self, row: int) -> None:
        if row + 1 < len(self._arrivals):
            self.events.at(self._arrivals[row + 1], self._arrive, row + 1)
        if not self._polling:
            self._wake()
        blocks = self.workload.blocks_of(row)
        request = self.view.request(row, self._prompts[row], self._asked[row], blocks)
        trip = self._trips[row] = Trip(row, request, blocks, self.events.now_s)
        self._unanswered.append(trip)
        self._decide(trip)

    def _decide(self, trip: Trip) -> None:
        cluster = self.view.cluster(trip.excluded)
        request = trip.request
        if self._foresight is not None:
            request, cluster = self._foresight.look(request, cluster, self._outputs[trip.row])
        try:
            decision = self.policy.decide(request, cluster)
        except NoPlanError:
            self._give_up(trip)
            return
        plan = decision.plan
        trip.decision, trip.split = decision, isinstance(plan, Split)
        if isinstance(plan, Split):
            trip.pre, trip.dec = self.view.place(plan.prefill), self.view.place(plan.decode)
        else:
            trip.pre = trip.dec = self.view.place(plan.worker)
        self.view.dispatched(trip)
        self.ledger.decided(trip)
        self.events.at(self.events.now_s + self.cluster.router_s, self._dispatch, trip, trip.tries)

    def _dispatch(self, trip: Trip, attempt: int) -> None:
        if trip.tries != attempt or trip.ended:
            return
        for place in (trip.pre, trip.dec):
            if not self.world.engines[place].alive:  # the connection is refused
                self.view.down(place)
                self._again(trip, self.view.workers[place].id)
                return
        tokens = (self._prompts[trip.row], self._outputs[trip.row])
        trip.job = Job(trip.row, *tokens, trip.blocks)
        if trip.split:
            trip.prefill = Job(trip.row, *tokens, trip.blocks)
            self.world.engines[trip.dec].expect(trip.job)
        else:
            self.world.engines[trip.pre].submit(trip.job)

    def _submit(self, trip: Trip, job: Job) -> None:
        if trip.prefill is job:
            self.world.engines[trip.pre].submit(job)

    def _moved(self, trip: Trip) -> None:
        assert trip.prefill is not None
        assert trip.job is not None
        trip.arrived_s = self.events.now_s
        self.world.engines[trip.pre].release(trip.prefill)
        self.world.engines[trip.dec].arrive(trip.job)

    def _end(self, trip: Trip) -> None:
        job = trip.job
        assert job is not None
        source = trip.prefill or job
        itl_s = (job.end_s - job.first_token_s) / max(1, job.output_tokens - 1)
        ttft_s = job.first_token_s - trip.arrival_s
        busy_s = trip.move.busy_s if trip.move is not None else 0.0
        self.view.ended(trip, ttft_s, itl_s, source.cached_tokens, busy_s)
        if itl_s > self.slo.itl_s:
            self._lose(trip)
        self.ledger.ended(trip, itl_s, source)
        self._close(trip)

    def _again(self, trip: Trip, failed_worker: str) -> None:
        """The attempt is lost: decide again without what failed it, unless its client has seen a token."""
        assert trip.decision is not None
        self.view.gave_up(trip)
        for place, job in ((trip.dec, trip.job), (trip.pre, trip.prefill)):
            if job is not None and self.world.engines[place].alive:
                self.world.engines[place].abort(job)
        if trip.move is not None:
            trip.move.drop()
        trip.job, trip.prefill, trip.move, trip.carriage = None, None, None, None
        trip.arrived_s = 0.0
        trip.excluded |= {trip.decision.plan.key, failed_worker}
        trip.tries += 1
        if trip.tries < MAX_TRIES and not self.ledger.answered(trip.row):
            self._decide(trip)
        else:
            self._give_up(trip)

    def _give_up(self, trip: Trip) -> None:
        self._lose(trip)
        self._close(trip)

    def _close(self, trip: Trip) -> None:
        trip.ended = True
        del self._trips[trip.row]
        self._ended += 1
        self._ended_s = self.events.now_s
        if self._watch is not None and self._ended % 64 == 0:
            self._watch(self._ended, len(self._arrivals))
        if self._ended == len(self._arrivals):
            self.events.stop()

    def _lose(self, trip: Trip) -> None:
        if not trip.lost:
            trip.lost = True
            self._lost += 1
            if self._lost > self._lost_limit:
                self.events.stop()

    def _wake(self) -> None:
        """Polls went on while nothing was asked, and told what they would tell now."""
        if self.events.now_s > 0.0:
            self.view.polled(self._answers(), self.events.now_s - self.cluster.staleness_s)
        self._poll()

    def _answers(self) -> list[dict[str, Any] | None]:
        return [engine.loads() if engine.alive else None for engine in self.world.engines]

    def _poll(self) -> None:
        now_s, cluster = self.events.now_s, self.cluster
        self.events.at(now_s + cluster.staleness_s, self.view.polled, self._answers(), now_s)
        quiet_s = now_s - self._ended_s
        self._polling = bool(self._trips) or quiet_s <= cluster.staleness_s + cluster.poll_s
        if self._polling:
            self.events.at(now_s + cluster.poll_s, self._poll)
        waiting = self._unanswered
        while waiting and (waiting[0].ended or self.ledger.answered(waiting[0].row)):
            waiting.popleft()
        if self._lost_limit < math.inf:
            for trip in waiting:
                overdue = now_s - trip.arrival_s > trip.request.slo.ttft_s
                if overdue and not self.ledger.answered(trip.row):
                    self._lose(trip)

"""One simulated worker: requests in, an engine behind them."""

from collections.abc import Callable, Iterable

from kvferry.integrations.sglang.errors import BadRequest
from kvferry.integrations.sglang.simulated.asked import FAKE_HOST, Asked, Sequence
from kvferry.integrations.sglang.simulated.flight import Failure, Flight, Inbox, Kind
from kvferry.integrations.sglang.simulated.pump import Pump
from kvferry.integrations.sglang.simulated.rooms import Carry, Rooms
from kvferry.models.simulator.engine import Engine
from kvferry.models.simulator.events import Event
from kvferry.models.simulator.job import Job
from kvferry.models.simulator.progress import boundary_s, tokens_out
from kvferry.policy.worker import Role

LOOK_S = 1e-4  # at least between two looks: the engine's own event of that time may be yet to come
IDLE_LOOK_S = 0.05  # when the engine has streams that it does not work on: retracted ones
ABORTED = Failure(0, "aborted on request")
Meet = Callable[["SimulatedWorker", Flight], Callable[[str], None]]
"""A decode half of this worker has KV room: meet its prefill half. The call that it returns tells that one
of an early end."""


class SimulatedWorker:
    """`engine` is set right after it is made, since it tells its hooks, which are here. All calls are made
    with the pump's time at now. `on_end` is told of every request that has ended."""

    engine: Engine
    on_end: Callable[[Flight], None] | None = None

    def __init__(
        self, pump: Pump, carry: Carry, meet: Meet, *, half_pair_timeout_s: float, stream_interval: int
    ) -> None:
        self.pump = pump
        self.rooms = Rooms(
            pump.events, carry, half_pair_timeout_s, self._submit, self._handed_over, self._lost
        )
        self._meet = meet
        self._interval = stream_interval
        self._flights: dict[Job, Flight] = {}
        self._by_rid: dict[str, Flight] = {}
        self._parting: dict[Job, Callable[[str], None]] = {}
        self._streams: dict[Job, Flight] = {}
        self._tick: Event | None = None
        self._row = 0

    @property
    def busy(self) -> bool:
        return bool(self._flights)

    def take(self, asked: Asked, inbox: Inbox) -> list[Flight]:
        """Begin to answer. ApiError when this worker does not take such a request."""
        kind = self._kind(asked)
        spec, received_s = self.engine.spec, self.pump.wall_s(self.pump.events.now_s)
        if len({sequence.rid for sequence in asked.sequences}) < len(asked.sequences):
            raise BadRequest("rid: two prompts of the batch have the same id", param="rid")
        for sequence in asked.sequences:
            if sequence.rid in self._by_rid:
                raise BadRequest(f"a request with id {sequence.rid!r} is in flight", param="rid")
            needed = sequence.prompt_tokens + (0 if kind is Kind.PREFILL else sequence.output_tokens)
            if needed > spec.max_total_tokens:
                raise BadRequest(
                    f"prompt and output have {needed} tokens, this worker's KV cache {spec.max_total_tokens}"
                )
        made = [self._flight(one, kind, asked, inbox, received_s) for one in asked.sequences]
        for flight in made:
            self._begin(flight)
        return made

    def drop(self, flights: Iterable[Flight], failure: Failure = ABORTED) -> None:
        """Nobody waits for these any more."""
        for flight in flights:
            if not flight.ended:
                self._forget(flight)
                if self.rooms.leave(flight.job, f"KVTransferError: {failure.message} at the prefill worker"):
                    self.engine.release(flight.job)
                else:
                    self.engine.abort(flight.job)
                self._part(flight, failure.message)
                flight.end(failure)

    def abort(self, rid: str, everything: bool = False) -> None:
        """As POST /abort_request: all whose id begins with `rid`."""
        if rid or everything:
            self.drop([flight for key, flight in self._by_rid.items() if everything or key.startswith(rid)])

    def arrived(self, flight: Flight, cached_tokens: int) -> None:
        """The KV of a decode half is here; the prefill worker had found so much of it in its cache."""
        if not flight.ended:
            self._parting.pop(flight.job, None)
            flight.found_tokens = cached_tokens
            flight.arrived_s = self.pump.events.now_s
            self.engine.arrive(flight.job)

    def lost(self, flight: Flight, why: str) -> None:
        """The KV of a decode half will not come."""
        if not flight.ended:
            self._parting.pop(flight.job, None)
            self._lost(flight, why)

    def granted(self, job: Job) -> None:
        """The engine's hook of that name, as the next three are. It may tell of a request that was aborted
        in its very last step."""
        flight, events = self._flights.get(job), self.pump.events
        if flight is None:
            return
        flight.granted_s = events.now_s
        if flight.address[0] == FAKE_HOST:
            events.at(events.now_s, self.engine.arrive, job)  # the engine is in the middle of its step
        else:
            self._parting[job] = self._meet(self, flight)

    def first_token(self, job: Job) -> None:
        flight = self._flights.get(job)
        if flight is None:
            return
        flight.advance(1)
        if flight.stream and job.output_tokens > 1:
            self._streams[job] = flight
            self._look()

    def finished(self, job: Job) -> None:
        flight = self._flights.get(job)
        if flight is None:
            return
        if flight.kind is not Kind.PREFILL:
            self._forget(flight)
            flight.tokens = job.output_tokens
            flight.end()
        elif flight.address[0] == FAKE_HOST:
            self._handed_over(flight)
        else:
            self.rooms.computed(job)

    def failed(self, job: Job) -> None:
        flight = self._flights.get(job)
        if flight is None:
            return
        self._forget(flight)
        why = "the request does not fit into the KV cache"
        self.rooms.leave(job, f"KVTransferError: {why} of the prefill worker")
        self._part(flight, why)
        flight.end(Failure(400, why))

    def _kind(self, asked: Asked) -> Kind:
        spec = self.engine.spec
        if spec.role is Role.COLOCATED or (asked.local and spec.local_prefill):
            return Kind.WHOLE
        if asked.local or any(one.room is None for one in asked.sequences):
            rid = asked.sequences[0].rid  # these words are SGLang's: routers know the case by them
            raise BadRequest(
                f"Invalid request: Disaggregated request received without bootstrap room id. req.rid={rid!r}"
            )
        return Kind.PREFILL if spec.role is Role.PREFILL else Kind.DECODE

    def _flight(self, one: Sequence, kind: Kind, asked: Asked, inbox: Inbox, received_s: float) -> Flight:
        self._row += 1
        output = 1 if kind is Kind.PREFILL else one.output_tokens
        job = Job(self._row, one.prompt_tokens, output, one.blocks)
        taken_s, address = self.pump.events.now_s, (asked.host, asked.port)
        flight = Flight(one, kind, job, inbox, asked.stream, received_s, taken_s, address)
        if asked.host != FAKE_HOST:  # as SGLang's own probes have it
            flight.on_end = self.on_end
        self._flights[job] = self._by_rid[one.rid] = flight
        return flight

    def _begin(self, flight: Flight) -> None:
        room = flight.asked.room
        if flight.kind is Kind.DECODE:
            self.engine.expect(flight.job)
        elif flight.kind is Kind.WHOLE or flight.address[0] == FAKE_HOST:
            self.engine.submit(flight.job)
        else:
            assert room is not None
            try:
                self.rooms.enter(room, flight)
            except KeyError:
                self._lost(flight, f"KVTransferError(bootstrap_room={room}): the room is taken")

    def _submit(self, flight: Flight) -> None:
        self.engine.submit(flight.job)

    def _handed_over(self, flight: Flight) -> None:
        """The KV of a prompt has left: the prefill worker is done with it."""
        self._forget(flight)
        flight.tokens = 1
        self.engine.release(flight.job)
        flight.end()

    def _lost(self, flight: Flight, why: str) -> None:
        """Half a pair without its other half."""
        self._forget(flight)
        if flight.job.prefill_end_s == flight.job.prefill_end_s and flight.kind is Kind.PREFILL:
            self.engine.release(flight.job)
        else:
            self.engine.abort(flight.job)
        flight.end(Failure(500, why))

    def _forget(self, flight: Flight) -> None:
        self._flights.pop(flight.job, None)
        self._streams.pop(flight.job, None)
        if self._by_rid.get(flight.asked.rid) is flight:
            del self._by_rid[flight.asked.rid]

    def _part(self, flight: Flight, why: str) -> None:
        part = self._parting.pop(flight.job, None)
        if part is not None:
            part(why)

    def _look(self) -> None:
        """Look at the streams now: that is, once the engine has planned its next step."""
        if self._tick is not None:
            self._tick.cancel()
        self._tick = self.pump.events.at(self.pump.events.now_s, self._tell)

    def _tell(self) -> None:
        """Tell what is out by now, and look again when the first of the streams has more."""
        self._tick = None
        engine, missing = self.engine, self._interval
        for job, flight in self._streams.items():
            out = tokens_out(engine, job)
            if out >= flight.tokens + self._interval:
                flight.advance(out)
            missing = min(missing, flight.tokens + self._interval - out)
        if self._streams:
            at_s, now_s = boundary_s(engine, missing), self.pump.events.now_s
            due_s = now_s + IDLE_LOOK_S if at_s is None else max(at_s, now_s + LOOK_S)
            self._tick = self.pump.events.at(due_s, self._tell)

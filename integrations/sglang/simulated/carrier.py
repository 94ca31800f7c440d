"""KV caches on their way out of one simulated prefill worker."""

import dataclasses
from collections.abc import Callable

from kvferry.models.simulator.network import Move, Nic
from kvferry.models.simulator.spec import EngineSpec
from kvferry.models.simulator.trip import Carriage
from kvferry.models.simulator.view import worker_of
from kvferry.models.simulator.world import World
from kvferry.policy.candidates import Candidates
from kvferry.policy.link import Link
from kvferry.policy.worker import Role, Worker


class Carrier:
    """Moves share the worker's NIC among themselves, and the destination's with the other moves of this
    process. A destination in another process is taken to be like this worker, with a NIC of its own: what
    reaches it from elsewhere is not seen."""

    def __init__(self, world: World, spec: EngineSpec) -> None:
        self._world, self._spec = world, spec
        self._source = world.sends[world.index[spec.id]]
        self._ways: dict[str, tuple[Nic, Carriage]] = {}

    def meeting_s(self, destination: str) -> float:
        """What the pair's first contact takes; 0 from then on."""
        if destination in self._ways:
            return 0.0
        self._ways[destination] = self._way(destination)
        return self._world.path.first_contact_s

    def begin(
        self, destination: str, prompt_tokens: int, held_tokens: int, done: Callable[[], None]
    ) -> "Carried":
        """A move that has nothing to send yet; the first `held_tokens` need not travel."""
        sink, carriage = self._ways[destination]
        path = self._world.path
        moved_bytes = (prompt_tokens - held_tokens) * carriage.wire_bytes
        closing_s = path.alpha_s + path.handoff_s + moved_bytes * carriage.repack_s_per_byte
        return Carried(Move(self._world.events, self._source, sink, closing_s, done), carriage, held_tokens)

    def _way(self, destination: str) -> tuple[Nic, Carriage]:
        world, transport = self._world, self._world.cluster.transport
        mine, place = worker_of(self._spec, transport), world.index.get(destination)
        if place is None:
            host = destination
            spec = dataclasses.replace(self._spec, id=destination, role=Role.DECODE, host=host, nic="")
            sink = Nic(f">{destination}", self._link(mine, mine, transport).beta_bytes_per_s)
        else:
            spec, sink = world.cluster.engines[place], world.receives[place]
        table = Candidates.build((mine, worker_of(spec, transport)), self._link)
        rows = [row for row, split in enumerate(table.split) if split]
        if not rows:
            raise ValueError(f"no KV can move from {mine.id} to {destination}: {dict(table.impossible)}")
        return sink, Carriage.of(table, rows[0])

    def _link(self, src: Worker, dst: Worker, transport: str) -> Link:
        units = min(src.layout.tp, dst.layout.tp)
        return Link.of(self._world.path, src.host, dst.host, transport, units=units)


class Carried:
    """One move; see `rooms.Move`."""

    __slots__ = ("_carriage", "_held", "_move", "_tokens")

    def __init__(self, move: Move, carriage: Carriage, held_tokens: int) -> None:
        self._move, self._carriage, self._held, self._tokens = move, carriage, held_tokens, 0

    def add(self, tokens: int) -> None:
        carriage = self._carriage
        self._tokens += tokens
        spared = min(tokens, self._held)
        self._held -= spared
        fresh = tokens - spared
        descriptors = carriage.merged_descriptors + fresh * carriage.descriptors_per_token
        self._move.offer(fresh * carriage.wire_bytes, descriptors * carriage.gamma_s)

    def close(self) -> None:
        carriage = self._carriage
        bounded = min(float(self._tokens), carriage.window_tokens) * carriage.window_wire_bytes
        self._move.offer(bounded + carriage.fixed_bytes, last=True)

    def cancel(self) -> None:
        self._move.drop()

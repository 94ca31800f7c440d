"""The true cluster behind a simulation: engines and NICs, drawn from the seed."""

import math
import random
from collections.abc import Callable, Sequence

from kvferry.models.link_catalogue import load_links
from kvferry.models.simulator.engine import Engine
from kvferry.models.simulator.events import Events
from kvferry.models.simulator.hooks import Hooks
from kvferry.models.simulator.network import Nic, reshare
from kvferry.models.simulator.silicon import any_steps
from kvferry.models.simulator.spec import ClusterSpec, EngineSpec, PathChange
from kvferry.models.simulator.steps import StepTimes
from kvferry.models.toml_file import ConfigError
from kvferry.policy.link import Link, PathClass

StepsOf = Callable[[EngineSpec], StepTimes]


def catalogue_steps(spec: EngineSpec) -> StepTimes:
    """The shipped coefficients for an engine's model, GPU and TP, or those of the kernel tables."""
    return any_steps(spec.model, spec.gpu, spec.tp)


def path_of(cluster: ClusterSpec) -> PathClass:
    """The path class that joins the cluster's hosts; ConfigError when there is none of that name."""
    classes = load_links()
    if cluster.path_class not in classes:
        raise ConfigError(
            f"cluster {cluster.name!r}: unknown path class {cluster.path_class!r}: known are "
            + ", ".join(sorted(classes))
        )
    return classes[cluster.path_class]


class World:
    """Engines by index of `cluster.engines`, with the NICs that each sends and receives through.

    `speeds` are the engines' true speeds (1: as measured tables say). A NIC's bandwidth is its path
    class's for the engine's TP, times a lasting lognormal factor, what `PathChange`s leave, and what
    foreign traffic leaves at the time.
    """

    def __init__(
        self,
        cluster: ClusterSpec,
        events: Events,
        hooks: Hooks,
        seed: int,
        block_tokens: int,
        steps_of: StepsOf = catalogue_steps,
    ) -> None:
        truth = cluster.truth
        self.cluster = cluster
        self.events = events
        self.path = path_of(cluster)
        self._rng = random.Random(f"{seed}/world")
        self.speeds = [math.exp(truth.speed_sigma * self._rng.gauss(0.0, 1.0)) for _ in cluster.engines]
        self.engines = [
            Engine(
                spec,
                steps_of(spec),
                events,
                hooks,
                random.Random(f"{seed}/engine/{index}"),
                speed=speed,
                step_sigma=truth.step_sigma,
                block_tokens=block_tokens,
            )
            for index, (spec, speed) in enumerate(zip(cluster.engines, self.speeds, strict=True))
        ]
        self.index = {spec.id: index for index, spec in enumerate(cluster.engines)}
        names = [spec.nic or spec.host or spec.id for spec in cluster.engines]
        self._base: dict[str, float] = {}
        self._factor = {name: 1.0 for name in names}
        self._left = {name: 1.0 for name in names}
        self._out: dict[str, Nic] = {}
        self._in: dict[str, Nic] = {}
        for name, spec in zip(names, cluster.engines, strict=True):
            if name not in self._base:
                link = Link.of(self.path, spec.id, "", cluster.transport, units=spec.tp)
                lasting = math.exp(truth.bandwidth_sigma * self._rng.gauss(0.0, 1.0))
                self._base[name] = link.beta_bytes_per_s * lasting
                self._out[name] = Nic(f"{name}>", self._base[name])
                self._in[name] = Nic(f">{name}", self._base[name])
        self.sends = [self._out[name] for name in names]
        self.receives = [self._in[name] for name in names]
        self._names = names
        if truth.contention_share > 0.0:
            for name in self._base:
                self._contend(name)

    def change(self, change: PathChange) -> None:
        """Links get worse or better."""
        mine: Sequence[str] = list(self._base)
        if change.worker:
            mine = [self._names[self.index[change.worker]]]
        for name in mine:
            self._factor[name] = change.factor
            self._renew(name)

    def slowness(self, index: int) -> float:
        """By how much an engine's NIC is truly slower than its path class says."""
        name = self._names[index]
        link = Link.of(self.path, "", "", self.cluster.transport, units=self.cluster.engines[index].tp)
        return link.beta_bytes_per_s / self._out[name].bytes_per_s

    def _contend(self, name: str) -> None:
        truth = self.cluster.truth
        self._left[name] = 1.0 - truth.contention_share * self._rng.random()
        self._renew(name)
        after_s = self._rng.expovariate(1.0 / truth.contention_period_s)
        self.events.at(self.events.now_s + after_s, self._contend, name)

    def _renew(self, name: str) -> None:
        rate = self._base[name] * self._factor[name] * self._left[name]
        for nic in (self._out[name], self._in[name]):
            nic.bytes_per_s = rate
            reshare(nic)

"""What is compared where: scenarios, and the tasks that answer for a policy in one of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from policies_parts import rules
from policies_parts.task import Task

from kvferry.models.simulator.cluster_file import parse_slo
from kvferry.models.simulator.events_file import Event
from kvferry.models.simulator.goodput import ScanRule
from kvferry.models.simulator.grid import Axes, PathAxis
from kvferry.models.simulator.source import Source, drawn
from kvferry.models.simulator.spec import ClusterSpec, SLORule
from kvferry.models.simulator.suits import can_split

TUNING_SEED = 100


@dataclass(frozen=True, slots=True)
class Scenario:
    """A workload on a pool whose workers a path joins. `path` is empty where nothing can be moved."""

    source: Source
    cluster: ClusterSpec
    duration_s: float
    path: str = ""
    events: tuple[Event, ...] = ()

    @property
    def name(self) -> tuple[str, str, str]:
        return self.source.name, self.path, self.cluster.name

    def with_chunk(self, tokens: int) -> "Scenario":
        engines = tuple(replace(engine, chunk_tokens=tokens) for engine in self.cluster.engines)
        return replace(self, cluster=replace(self.cluster, engines=engines))

    def stale(self, staleness_s: float) -> "Scenario":
        return replace(self, cluster=replace(self.cluster, staleness_s=staleness_s))


@dataclass(frozen=True)
class Contest:
    """`slos`: by rising ITL. `tuned`: settings of each tuned rule. `tag`: of kvferry's own runs."""

    name: str
    scenarios: tuple[Scenario, ...]
    challengers: tuple[Scenario, ...]
    slos: tuple[tuple[str, SLORule], ...]
    seeds: tuple[int, ...]
    rule: ScanRule
    tuned: Mapping[str, tuple[str, ...]]
    chunks: tuple[int, ...]
    untuned: tuple[str, ...]
    tag: str = ""
    _digests: dict[Source, str] = field(default_factory=dict)

    @cached_property
    def coarse(self) -> ScanRule:
        """For tuning: every second rate, and one failure ends it."""
        rule = self.rule
        return replace(rule, step=rule.step**2, leap=max(1, rule.leap // 2), patience=1)

    def challenger(self, scenario: Scenario) -> Scenario | None:
        """The colocated pool under the same workload."""
        return next((other for other in self.challengers if other.source == scenario.source), None)

    def runs(
        self, scenario: Scenario, policy: str, slo: int, *, tuning: bool = False
    ) -> tuple[list[Task], int]:
        """The tasks (one a seed) that tell of `policy` under objective number `slo`, and which of their
        objectives that is. Equal calls give equal tasks, so that what was planned is found again."""
        slos = tuple(rule for _, rule in self.slos)
        blind = rules.is_blind(policy)
        labels = (
            ("workload", scenario.source.name),
            ("path", scenario.path),
            ("cluster", scenario.cluster.name),
            ("slo", None if blind else self.slos[slo][0]),
            ("half", "tuning" if tuning else "report"),
        )
        source, count = scenario.source, len(self.seeds)
        parts = [tuning_part(source)] if tuning else [report_part(source, n, count) for n in range(count)]
        tasks = [
            Task(
                labels=(*labels, ("policy", policy), ("seed", seed)),
                source=part,
                digest=self._digest(source),
                cluster=scenario.cluster,
                slos=slos if blind else (slos[slo],),
                policy=policy,
                seed=seed,
                duration_s=scenario.duration_s,
                rule=self.coarse if tuning else self.rule,
                events=scenario.events,
                tag="" if blind else self.tag,
            )
            for part, seed in zip(parts, (TUNING_SEED,) if tuning else self.seeds, strict=True)
        ]
        return tasks, slo if blind else 0

    def _digest(self, source: Source) -> str:
        if source not in self._digests:
            self._digests[source] = source.digest()
        return self._digests[source]


def tuning_part(source: Source) -> Source:
    """The first half of what a trace has, the part before `start_share` where the grid begins later; what is
    drawn anew is tuned under another seed instead."""
    if any(drawn(path) for path, _ in source.parts):
        return source
    if source.start_share > 0:
        return replace(source, start_share=0.0, end_share=source.start_share)
    return replace(source, end_share=source.end_share / 2)


def report_part(source: Source, number: int, of: int) -> Source:
    """The other half. Run `number` of `of` begins that much later in it, so that seeds see other requests
    too and not only other machines."""
    if any(drawn(path) for path, _ in source.parts):
        return source
    start = source.start_share or source.end_share / 2
    return replace(source, start_share=start + (source.end_share - start) * number / (of + 1))


def contest_of(axes: Axes, name: str, tag: str = "") -> Contest:
    """From a grid's axes: clusters that can split are pools, the others challengers."""
    assert axes.scan is not None
    pools = [file.spec for file in axes.clusters if can_split(file.spec)]
    alone = [file.spec for file in axes.clusters if not can_split(file.spec)]
    scenarios, challengers = [], []
    for source in axes.sources:
        lasts_s = source.duration_s or axes.duration_s or 60.0
        for pool in pools:
            scenarios += [
                Scenario(source, _joined(pool, path), lasts_s, path.name, path.events) for path in axes.paths
            ]
        challengers += [Scenario(source, pool, lasts_s) for pool in alone[:1]]
    slos = [(named, parse_slo(entry, named, SLORule())) for named, entry in axes.slos]
    return Contest(
        name=name,
        scenarios=tuple(scenarios),
        challengers=tuple(challengers),
        slos=tuple(sorted(slos, key=lambda slo: slo[1].itl_s)),
        seeds=axes.seeds,
        rule=axes.scan,
        tuned={family: tuple(rules.settings(family)) for family in rules.TUNED},
        chunks=rules.CHUNKS,
        untuned=tuple(rules.untuned()),
        tag=tag,
    )


def quick(contest: Contest) -> Contest:
    """A first impression: one seed, one path, coarser rates, shorter runs, every second setting."""
    first = contest.scenarios[0].path

    def shorter(scenario: Scenario) -> Scenario:
        return replace(scenario, duration_s=scenario.duration_s / 2)

    return replace(
        contest,
        scenarios=tuple(shorter(scenario) for scenario in contest.scenarios if scenario.path == first),
        challengers=tuple(shorter(scenario) for scenario in contest.challengers),
        seeds=contest.seeds[:1],
        rule=contest.coarse,
        tuned={family: settings[1::2] for family, settings in contest.tuned.items()},
        chunks=contest.chunks[1::2],
    )


def only(contest: Contest, words: tuple[str, ...]) -> Contest:
    """The scenarios whose workload, path or pool each word names."""
    kept = tuple(scenario for scenario in contest.scenarios if set(words) <= set(scenario.name))
    sources = {scenario.source for scenario in kept}
    return replace(
        contest,
        scenarios=kept,
        challengers=tuple(scenario for scenario in contest.challengers if scenario.source in sources),
    )


def _joined(pool: ClusterSpec, path: PathAxis) -> ClusterSpec:
    return replace(
        pool,
        path_class=path.path_class or pool.path_class,
        transport=path.transport or pool.transport,
    )

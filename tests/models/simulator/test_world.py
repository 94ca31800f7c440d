"""The true cluster: drawn from the seed, degraded and contended as the spec says."""

from dataclasses import replace

import pytest
from engine_worlds import STEPS, Heard
from small_worlds import QUIET, cluster_of

from kvferry.models.simulator.events import Events
from kvferry.models.simulator.spec import ClusterSpec, PathChange, TruthSpec
from kvferry.models.simulator.world import World, path_of
from kvferry.models.toml_file import ConfigError


def world_of(cluster: ClusterSpec, seed: int = 0) -> World:
    events = Events()
    return World(cluster, events, Heard(events), seed, 512, lambda spec: STEPS)


def rates(world: World) -> list[float]:
    return [nic.bytes_per_s for nic in (*world.sends, *world.receives)]


def test_a_quiet_world_is_as_its_catalogue_says() -> None:
    world = world_of(cluster_of(truth=QUIET))
    assert world.speeds == [1.0] * 3
    assert [world.slowness(place) for place in range(3)] == [1.0] * 3
    world.events.run()
    assert world.events.done == 0


def test_the_seed_draws_the_world() -> None:
    cluster = cluster_of()
    first, same, other = world_of(cluster), world_of(cluster), world_of(cluster, seed=1)
    for world in (first, same, other):
        world.events.run(60.0)
    assert (first.speeds, rates(first)) == (same.speeds, rates(same))
    assert first.speeds != other.speeds
    assert rates(first) != rates(other)
    assert len(set(first.speeds)) == 3


def test_foreign_traffic_takes_its_share_and_no_more() -> None:
    world = world_of(cluster_of(truth=replace(QUIET, contention_share=0.3, contention_period_s=2.0)))
    free = world_of(cluster_of(truth=QUIET)).sends[0].bytes_per_s
    seen = set()
    for second in range(200):
        world.events.run(float(second))
        seen.add(world.sends[0].bytes_per_s)
        assert world.sends[0].bytes_per_s == world.receives[0].bytes_per_s
    assert 50 < len(seen) < 150  # redrawn every 2 s or so
    assert 0.7 * free <= min(seen) < 0.75 * free
    assert 0.95 * free < max(seen) <= free


def test_a_path_change_is_of_one_worker_or_all_and_does_not_add_up() -> None:
    world = world_of(cluster_of(truth=QUIET))
    free = rates(world)
    world.change(PathChange(0.0, 0.1, "p0"))
    world.change(PathChange(0.0, 0.1, "p0"))
    assert rates(world) == pytest.approx([0.1 * free[0], *free[1:3], 0.1 * free[3], *free[4:]])
    assert world.slowness(0) == pytest.approx(10.0)
    world.change(PathChange(0.0, 0.5))
    assert rates(world) == pytest.approx([0.5 * rate for rate in free])
    world.change(PathChange(0.0, 1.0))
    assert rates(world) == pytest.approx(free)


def test_workers_that_name_one_nic_share_it() -> None:
    cluster = cluster_of(2, 1, 0, TruthSpec())
    engines = tuple(
        replace(spec, nic="host0") if spec.id.startswith("p") else spec for spec in cluster.engines
    )
    world = world_of(replace(cluster, engines=engines))
    assert world.sends[0] is world.sends[1]
    assert world.sends[0] is not world.sends[2]


def test_a_path_class_that_nobody_knows_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match=r"pigeon.*ib_ndr400"):
        path_of(cluster_of(path_class="pigeon"))

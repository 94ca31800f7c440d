"""Clusters and events from TOML, and the one line that says what is wrong with them."""

from pathlib import Path

import numpy as np
import pytest

from kvferry.models.simulator.cluster_file import BUILT_IN, read_cluster
from kvferry.models.simulator.events_file import changes_of, needed_s, parse_events, read_events, shift_load
from kvferry.models.simulator.spec import PathChange, SLORule, WorkerChange
from kvferry.models.simulator.step_catalogue import kv_room_tokens
from kvferry.models.toml_file import ConfigError
from kvferry.models.workload.base import Workload
from kvferry.policy.worker import Role

QWEN = 'model = "Qwen/Qwen3-32B"\ngpu = "h200"\ntp = 2\n'
COLOCATED = f'[[worker]]\nrole = "colocated"\n{QWEN}'


def written(tmp_path: Path, text: str) -> str:
    file = tmp_path / "own.toml"
    file.write_text(text)
    return str(file)


@pytest.mark.parametrize(
    ("name", "roles", "local"),
    [
        ("4p4d", {"prefill": 4, "decode": 4}, 4),
        ("4p4d-split", {"prefill": 4, "decode": 4}, 0),
        ("2p2d4c", {"prefill": 2, "decode": 2, "colocated": 4}, 0),
        ("8c", {"colocated": 8}, 0),
    ],
)
def test_built_in_clusters(name: str, roles: dict[str, int], local: int) -> None:
    spec = read_cluster(name).spec
    assert {role: sum(engine.role == role for engine in spec.engines) for role in roles} == roles
    assert len(spec.engines) == 8
    assert sum(engine.local_prefill for engine in spec.engines) == local
    assert spec.name == name
    assert all(
        engine.max_total_tokens == kv_room_tokens("Qwen/Qwen3-32B", "h200", 2) for engine in spec.engines
    )


def test_every_built_in_cluster_is_tested_above() -> None:
    assert set(BUILT_IN) == {"4p4d", "4p4d-split", "2p2d4c", "8c"}


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    file = read_cluster(
        written(
            tmp_path,
            f"""
name = "mine"
[[worker]]
role = "prefill"
id = "fast"
host = "h1"
nic = "shared"
{QWEN}
[[worker]]
role = "decode"
count = 2
local_prefill = true
chunk_tokens = 512
max_total_tokens = 1000
{QWEN}
[path]
class = "tcp_100g"
transport = "nixl"
[router]
staleness_s = 0.3
[truth]
speed_sigma = 0
[slo]
itl_ms = 20
""",
        )
    )
    spec = file.spec
    assert [engine.id for engine in spec.engines] == ["fast", "d0", "d1"]
    assert [engine.host for engine in spec.engines] == ["h1", "d0", "d1"]
    assert spec.engines[0].nic == "shared"
    assert spec.engines[1].role is Role.DECODE
    assert (spec.engines[1].chunk_tokens, spec.engines[1].max_total_tokens) == (512, 1000)
    assert (spec.name, spec.path_class, spec.transport) == ("mine", "tcp_100g", "nixl")
    assert (spec.staleness_s, spec.truth.speed_sigma) == (0.3, 0.0)
    assert file.slo == SLORule(itl_s=0.02)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no [[worker]]"),
        ("[[worker]]\n", "[[worker]] 1: 'role' is missing"),
        (f'[[worker]]\nrole = "both"\n{QWEN}', "role = 'both' is none of prefill, decode, colocated"),
        (COLOCATED + "count = 0\n", "count = 0 is not a whole number of at least 1"),
        (COLOCATED + "chunk_token = 3\n", "[[worker]] 1: unknown key 'chunk_token'"),
        (COLOCATED + "local_prefill = true\n", "local_prefill is for decode workers"),
        (COLOCATED + 'prefix_cache = "no"\n', "prefix_cache = 'no' is neither true nor false"),
        (COLOCATED.replace("h200", "abacus"), "abacus"),
        (COLOCATED + '[path]\nclass = "string and cans"\n', "class = 'string and cans' is no path class"),
        (COLOCATED + "[slo]\nitl = 3\n", "[slo]: unknown key 'itl'"),
        (COLOCATED + "[slo]\nitl_ms = -3\n", "[slo]: itl_ms = -3"),
        (COLOCATED + "[truth]\ncontention_share = 1.5\n", "contention_share = 1.5 is not between 0 and 0.99"),
        (COLOCATED + '[path]\ntransport = "mooncke"\n', "transport = 'mooncke' is none of mooncake, nixl"),
        (COLOCATED + "[router]\npoll_s = 0\n", "poll_s = 0 is not between 0.01 and 3600"),
        (COLOCATED.replace("[[worker]]", "[worker]"), "[[worker]] tables"),
        (COLOCATED + 'id = "x"\n' + COLOCATED + 'id = "x"\n', "two workers have the id 'x'"),
        (f'[[worker]]\nrole = "prefill"\n{QWEN}', "prefill workers, but no decode worker"),
        ("worker = 3 = 4", "broken TOML"),
    ],
)
def test_what_is_wrong_is_named_with_file_table_key_and_value(tmp_path: Path, text: str, told: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        read_cluster(file)
    assert told in str(error.value)
    assert file in str(error.value)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no cluster '9c'.*4p4d, 4p4d-split, 2p2d4c, 8c"):
        read_cluster("9c")


EVENTS = """
[[event]]
time_share = 0.5
path_factor = 0.1
[[event]]
time_s = 10
path_factor = 0.5
worker = "d0"
[[event]]
time_s = 20
dies = "p1"
[[event]]
time_s = 30
returns = "p1"
[[event]]
time_s = 40
load_factor = 2
"""


def test_events_become_changes_in_order_of_time(tmp_path: Path) -> None:
    events = read_events(Path(written(tmp_path, EVENTS)))
    found = changes_of(events, read_cluster("4p4d").spec, duration_s=30.0)
    assert found == (
        PathChange(10.0, 0.5, "d0"),
        PathChange(15.0, 0.1),
        WorkerChange(20.0, "p1", alive=False),
        WorkerChange(30.0, "p1", alive=True),
    )
    assert [event.label for event in events] == [
        "path x0.1",
        "path of d0 x0.5",
        "p1 dies",
        "p1 returns",
        "load x2",
    ]


def test_an_event_for_a_worker_nobody_has(tmp_path: Path) -> None:
    events = read_events(Path(written(tmp_path, EVENTS)))
    with pytest.raises(ConfigError, match=r"'d0'; 8c has c0"):
        changes_of(events, read_cluster("8c").spec, 30.0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[event]]\npath_factor = 2\n", "give 'time_s' or 'time_share'"),
        ("[[event]]\ntime_s = 1\ntime_share = 1\npath_factor = 2\n", "give 'time_s' or 'time_share'"),
        ("[[event]]\ntime_s = 1\n", "not 0"),
        ('[[event]]\ntime_s = 1\npath_factor = 2\ndies = "a"\n', "not 2"),
        ("[[event]]\ntime_share = 1.5\npath_factor = 2\n", "time_share = 1.5 is above 1"),
        ("[[event]]\ntime_s = 1\npath_factor = 0\n", "path_factor = 0 must be above 0"),
        ("[[event]]\ntime_s = 1\ndies = 3\n", "dies = 3 is not a string"),
        ('[[event]]\ntime_s = 1\nload_factor = 3\nworker = "a"\n', "leave out 'worker'"),
        ("[[events]]\ntime_s = 1\n", "unknown key 'events'"),
    ],
)
def test_wrong_events_are_named(tmp_path: Path, text: str, told: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        read_events(Path(file))
    assert told in str(error.value)
    assert file in str(error.value)


def test_load_shifts_bend_time_and_nothing_else() -> None:
    events = parse_events([{"time_s": 10, "load_factor": 2}, {"time_s": 20, "load_factor": 0.5}], "here")
    assert needed_s(events, 30.0) == 10 + 20 + 5
    workload = Workload.of("even", np.arange(35.0), [10] * 35, [5] * 35)
    shifted = shift_load(workload, events, 30.0)
    counts = np.histogram(shifted.arrival_s, [0, 10, 20, 30])[0]
    assert counts.tolist() == [10, 20, 5]
    assert shifted.arrival_s[10] == 10.0
    assert shifted.prompt_tokens is workload.prompt_tokens
    assert shift_load(workload, (), 30.0) is workload

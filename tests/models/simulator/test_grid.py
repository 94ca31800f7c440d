"""Grids: which cells an axis makes, what makes two of them the same, and what one comes to."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from kvferry.models.simulator.cell import Cell, run_cell
from kvferry.models.simulator.grid_file import BUILT_IN, read_grid
from kvferry.models.simulator.source import Source
from kvferry.models.simulator.suits import split_names, unsuited
from kvferry.models.toml_file import ConfigError

SMALL = """
duration_s = 10
seeds = [0, 1]
policies = ["kvferry", "always_split", "coin(0.5)"]
clusters = ["4p4d", "8c"]
rates_rps = [3, 6]

[[workload]]
name = "even"
file = "steady"

[[path]]
name = "fast"
class = "ib_ndr400_gdr_per_nic"

[[path]]
name = "drops"
class = "tcp_100g"
events = [{ time_share = 0.5, path_factor = 0.1 }]

[[slo]]
name = "tight"
itl_ms = 20
"""


def written(folder: Path, text: str = SMALL) -> str:
    file = folder / "small.toml"
    file.write_text(text)
    return str(file)


def test_cells_are_the_product_of_the_axes_less_what_makes_no_sense(tmp_path: Path) -> None:
    grid = read_grid(written(tmp_path))
    labels = [dict(cell.labels) for cell in grid.cells]
    assert Counter(label["cluster"] for label in labels) == {"4p4d": 2 * 2 * 3 * 2, "8c": 2 * 2 * 1 * 2}
    assert {label["policy"] for label in labels if label["cluster"] == "8c"} == {"kvferry"}
    assert len(grid.skipped) == 2
    assert all("splits nothing on 8c" in why for why in grid.skipped)
    assert grid.name == "small"
    assert all(cell.slo.itl_s == 0.02 and cell.slo.ttft_s == 0.5 for cell in grid.cells)
    drops = [cell for cell in grid.cells if dict(cell.labels)["path"] == "drops"]
    assert {cell.cluster.path_class for cell in drops if cell.cluster.name == "4p4d"} == {"tcp_100g"}


def test_a_cell_without_a_split_is_the_same_on_every_path(tmp_path: Path) -> None:
    cells = read_grid(written(tmp_path)).cells
    keys = Counter(cell.key for cell in cells)
    shared = {cell.cluster.name for cell in cells if keys[cell.key] == 2}
    assert shared == {"8c"}
    assert len(keys) == 24 + 4


def test_a_key_is_of_all_that_goes_into_a_result_and_nothing_else(tmp_path: Path) -> None:
    cell = read_grid(written(tmp_path)).cells[0]
    others = [
        replace(cell, policy="always_split"),
        replace(cell, seed=9),
        replace(cell, rate_rps=9.0),
        replace(cell, duration_s=11.0),
        replace(cell, slo=replace(cell.slo, itl_s=1.0)),
        replace(cell, digest="other"),
        replace(cell, cluster=replace(cell.cluster, staleness_s=1.0)),
        replace(cell, source=replace(cell.source, end_share=0.5)),
    ]
    assert len({cell.key, *(other.key for other in others)}) == 1 + len(others)
    assert replace(cell, labels=()).key == cell.key
    assert replace(cell, source=replace(cell.source, name="renamed")).key == cell.key


def test_chunks_and_models_change_every_worker(tmp_path: Path) -> None:
    model = '[[model]]\nmodel = "meta-llama/Meta-Llama-3.1-70B"\ngpu = "h200"\ntp = 4\n'
    more = "chunks = [512]\n" + SMALL + model
    engines = [engine for cell in read_grid(written(tmp_path, more)).cells for engine in cell.cluster.engines]
    assert {engine.chunk_tokens for engine in engines} == {512}
    assert {(engine.model, engine.tp) for engine in engines} == {("meta-llama/Meta-Llama-3.1-70B", 4)}
    assert len({engine.max_total_tokens for engine in engines}) == 1


def trace(folder: Path, name: str, prompt_tokens: int, count: int) -> None:
    lines = (
        {"timestamp": row * 1000, "input_length": prompt_tokens, "output_length": 5, "hash_ids": []}
        for row in range(count)
    )
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_mix_keeps_its_weights_at_any_rate(tmp_path: Path) -> None:
    trace(tmp_path, "short.jsonl", 100, 60)
    trace(tmp_path, "long.jsonl", 9000, 60)
    source = Source("mix", ((str(tmp_path / "short.jsonl"), 3.0), (str(tmp_path / "long.jsonl"), 1.0)))
    for rate_rps in (2.0, 8.0):
        workload = source.offered(rate_rps, 20.0, seed=0)
        assert len(workload) == 20 * rate_rps
        assert (workload.prompt_tokens == 100).sum() == 15 * rate_rps
    assert source.offered(None, None, seed=0).rate_rps == pytest.approx(4 / 3, rel=0.1)


def test_a_share_of_a_trace_is_of_its_time(tmp_path: Path) -> None:
    trace(tmp_path, "even.jsonl", 100, 60)
    first, second = (
        Source("half", ((str(tmp_path / "even.jsonl"), 1.0),), start, start + 0.5).offered(None, None, 0)
        for start in (0.0, 0.5)
    )
    assert len(first) + len(second) == 60
    assert abs(len(first) - len(second)) <= 2


def test_files_of_a_grid_lie_beside_it_or_where_one_says(tmp_path: Path) -> None:
    own = SMALL.replace('file = "steady"', 'file = "even.jsonl"')
    with pytest.raises(ConfigError, match=r"\[\[workload\]\] 1: cannot read even.jsonl.*--traces"):
        read_grid(written(tmp_path, own))
    elsewhere = tmp_path / "traces"
    elsewhere.mkdir()
    trace(elsewhere, "even.jsonl", 100, 60)
    assert read_grid(written(tmp_path, own), elsewhere).cells
    trace(tmp_path, "even.jsonl", 100, 60)
    assert (
        read_grid(written(tmp_path, own)).cells[0].digest
        == read_grid(written(tmp_path, own), elsewhere).cells[0].digest
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("[0, 1]", "[0, 0]"), "seeds = [0, 0] holds a value twice"),
        (("[0, 1]", "[-1]"), "seeds holds -1"),
        (("[0, 1]", "3"), "seeds = 3 is not a list"),
        (("[3, 6]", "[0]"), "rates_rps holds 0"),
        (('"coin(0.5)"', '"coin(7)"'), "policy 'coin(7)'"),
        (('"coin(0.5)"', '"psychic"'), "unknown policy 'psychic'"),
        (('"8c"', '"9c"'), "no cluster '9c'"),
        (('class = "tcp_100g"', 'class = "tcp"'), "[[path]] 2: class = 'tcp' is no path class"),
        (("path_factor = 0.1", "path_facto = 0.1"), "[[events]] 1: unknown key 'path_facto'"),
        (("itl_ms = 20", "itl_s = 20"), "[[slo]] 1: unknown key 'itl_s'"),
        (('file = "steady"', "start_share = 1"), "give 'file', or 'mix'"),
        (('file = "steady"', 'file = "steady"\nend_share = 0.5'), "drawn anew for every run"),
        (("duration_s = 10", "duration_s = 0"), "duration_s = 0 must be above 0"),
        (("duration_s = 10", "durations = 10"), "unknown key 'durations'"),
        (("rates_rps = [3, 6]", "[goodput]\nstep = 0.5"), "[goodput]: step 0.5"),
        (("[[slo]]", "[goodput]\nstep = 1.5\n[[slo]]"), "give rates_rps or [goodput], not both"),
        (
            ('name = "drops"\nclass = "tcp_100g"', 'name = "fast"\nclass = "tcp_100g"'),
            'two [[path]] are both called "fast": give names',
        ),
        (("[[slo]]", '[[slo]]\nname = "tight"\nitl_ms = 9\n[[slo]]'), 'two [[slo]] are both called "tight"'),
        (
            ("[[path]]", '[[workload]]\nname = "even"\nfile = "bursty"\n[[path]]'),
            'two [[workload]] are both called "even"',
        ),
        (
            ("[[slo]]", '[[model]]\nmodel = "Qwen/Qwen3-32B"\ngpu = "h200"\ntp = 2\n' * 2 + "[[slo]]"),
            "two [[model]] are both",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change: tuple[str, str], told: str) -> None:
    assert change[0] in SMALL
    file = written(tmp_path, SMALL.replace(*change, 1))
    with pytest.raises(ConfigError) as error:
        read_grid(file)
    assert told in str(error.value)


def test_built_in_grids_say_which_trace_they_miss(tmp_path: Path) -> None:
    assert BUILT_IN == ("core", "full")
    for name in BUILT_IN:
        with pytest.raises(ConfigError, match=r"mooncake_conversation.jsonl"):
            read_grid(name, tmp_path)


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_grids_can_be_read(name: str) -> None:
    traces = Path(__file__).parents[4] / "shared" / "data" / "traces"
    if not traces.is_dir():
        pytest.skip("../shared/data/traces is not on this machine")
    cells = read_grid(name, traces).cells
    assert all(cell.scan is not None for cell in cells)
    assert {cell.policy for cell in cells} >= {"kvferry", "oracle", "always_split", "coin(0.5)"}


def test_policies_that_would_be_others_under_a_false_name(tmp_path: Path) -> None:
    clusters = {cell.cluster.name: cell.cluster for cell in read_grid(written(tmp_path)).cells}
    no_local = replace(
        clusters["4p4d"], engines=tuple(replace(e, local_prefill=False) for e in clusters["4p4d"].engines)
    )
    assert "splits nothing on 8c" in unsuited("length_threshold(8192)", clusters["8c"])
    assert "splits nothing on 8c" in unsuited("always_split", clusters["8c"])
    assert not unsuited("always_split", no_local)
    assert "cannot keep a request on one worker" in unsuited("always_colocated", no_local)
    for policy in ("kvferry", "oracle", "least_load", "random_by_workers"):
        assert not unsuited(policy, clusters["8c"])
        assert not unsuited(policy, no_local)


def test_commas_inside_parentheses_part_no_policies() -> None:
    assert split_names("kvferry, coin(0.5),x(1, 2),,y") == ["kvferry", "coin(0.5)", "x(1, 2)", "y"]


def cell_of(tmp_path: Path, **changes: object) -> Cell:
    return replace(read_grid(written(tmp_path)).cells[0], **changes)  # type: ignore[arg-type]


def test_a_cell_comes_to_the_same_every_time(tmp_path: Path) -> None:
    cell = cell_of(tmp_path)
    first = json.dumps(run_cell(cell), allow_nan=False)
    assert json.dumps(run_cell(cell), allow_nan=False) == first
    assert json.dumps(run_cell(replace(cell, seed=5)), allow_nan=False) != first
    assert json.loads(first)["figures"]["slo_attainment"] > 0.9
    assert json.loads(first)["figures"]["requests"] == pytest.approx(30, abs=20)


def test_a_scan_finds_the_rate_at_which_a_pool_breaks(tmp_path: Path) -> None:
    text = (
        '[[worker]]\nrole = "colocated"\nmodel = "Qwen/Qwen3-32B"\ngpu = "h200"\ntp = 2\n'
        "max_total_tokens = 20000\n"
    )
    (tmp_path / "one.toml").write_text(text)
    own = SMALL.replace('"4p4d", "8c"', f'"{tmp_path / "one.toml"}"').replace("rates_rps = [3, 6]\n", "")
    own = own.replace('"kvferry", "always_split", "coin(0.5)"', '"least_load"')
    own += "[goodput]\nstart_rps = 0.5\nstep = 1.3\nleap = 3\nmin_requests = 60\n"
    cell = read_grid(written(tmp_path, own)).cells[0]
    found = run_cell(cell)
    points = found["points"]
    goodput_rps = found["figures"]["goodput_rps"]
    assert 0.5 < goodput_rps < max(rate for rate, _, _ in points)
    assert goodput_rps == max(rate for rate, met, _ in points if met is not None and met >= 0.9)
    assert found["rate_rps"] == goodput_rps
    assert found["figures"]["slo_attainment"] >= 0.9

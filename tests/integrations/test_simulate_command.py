"""`kvferry simulate` as it is called."""

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from kvferry.integrations.simulate.progress import progress
from kvferry.integrations.simulate.table import policies_table
from kvferry.models.simulator.metrics import pool

SHORT = ("--workload", "steady", "--rate", "4", "--duration", "8")
CONTRACT = {
    "goodput_rps",
    "slo_attainment",
    "ttft_p50_s",
    "ttft_p99_s",
    "itl_p50_s",
    "itl_p99_s",
    "e2e_p50_s",
    "split_share",
    "moved_bytes",
    "regret_mean",
}


def test_json_keeps_the_contract(call) -> None:  # type: ignore[no-untyped-def]
    code, out, err = call(*SHORT, "--policy", "kvferry,coin(0.5),oracle", "--jobs", "1", "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert {"seed", "workload", "cluster", "policies"} <= set(found)
    assert list(found["policies"]) == ["kvferry", "coin(0.5)", "oracle"]
    assert all(set(row) >= CONTRACT for row in found["policies"].values())
    assert found["policies"]["oracle"]["regret_mean"] == 0.0
    assert found["policies"]["kvferry"]["goodput_rps"] is None
    assert 0.2 < found["policies"]["coin(0.5)"]["split_share"] < 0.8


def test_same_seed_same_bytes_with_one_process_and_with_two(call) -> None:  # type: ignore[no-untyped-def]
    arguments = (*SHORT, "--policy", "kvferry,random_by_workers", "--seeds", "2", "--json")
    first = call(*arguments, "--jobs", "1")
    assert first[0] == 0
    assert call(*arguments, "--jobs", "1") == first
    assert call(*arguments, "--jobs", "2") == first
    assert call(*arguments, "--jobs", "1", "--seed", "5")[1] != first[1]


def test_a_new_process_says_the_same(call) -> None:  # type: ignore[no-untyped-def]
    """No order of sets, no hash of strings, nothing left over from an earlier run."""
    arguments = (*SHORT, "--policy", "kvferry", "--jobs", "1", "--json")
    words = [sys.executable, "-m", "kvferry.integrations.cli.app", "simulate", *arguments]
    env = {**os.environ, "PYTHONHASHSEED": "77"}
    other = subprocess.run(words, capture_output=True, text=True, check=True, env=env)
    assert other.stdout == call(*arguments)[1]


def test_table_fits_80_columns(call) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = call(*SHORT, "--jobs", "1", "--seeds", "2", "--duration", "4")
    assert code == 0
    assert max(len(line) for line in out.splitlines()) <= 80
    assert "length_threshold(2048)" in out
    assert "regret" in out


def test_without_a_split_the_defaults_are_those_that_make_sense(call) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = call(*SHORT, "--cluster", "8c", "--jobs", "1", "--json")
    found = json.loads(out)["policies"]
    assert code == 0
    assert set(found) == {"kvferry", "always_colocated", "oracle"}
    assert all(row["split_share"] == 0.0 for row in found.values())


def test_objectives_change_what_is_met(call) -> None:  # type: ignore[no-untyped-def]
    arguments = (*SHORT, "--policy", "kvferry", "--jobs", "1", "--json")
    strict = json.loads(call(*arguments, "--slo-itl", "0.0001")[1])
    lax = json.loads(call(*arguments, "--slo-ttft", "99", "--slo-itl-s", "9")[1])
    assert strict["policies"]["kvferry"]["slo_attainment"] == 0.0
    assert strict["policies"]["kvferry"]["loss_mean"] == 1.0
    assert lax["policies"]["kvferry"]["slo_attainment"] == 1.0
    assert lax["slo"] == {"ttft_s": 99.0, "ttft_s_per_token": 0.25e-3, "itl_s": 9.0}


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("--policy", "psychic"), 2, "unknown policy 'psychic'"),
        (("--policy", "always_split", "--cluster", "8c"), 2, "always_split splits nothing on 8c"),
        (("--policy", "coin(2)"), 2, "share 2.0 is not between 0 and 1"),
        (("--policy", ","), 2, "names no policy"),
        (("--rate", "-1"), 2, "--rate = -1 is not above 0"),
        (("--slo-itl", "-1"), 2, "--slo-itl-s = -1 is not a time"),
        (("--workload", "nothing"), 2, "no built-in workload 'nothing'"),
        (("--workload", "nothing.jsonl"), 1, "cannot read nothing.jsonl"),
        (("--cluster", "nothing"), 2, "no cluster 'nothing'"),
        (("--cluster", "nothing.toml"), 1, "cannot read nothing.toml"),
        (("--events", "nothing.toml"), 1, "cannot read nothing.toml"),
        (("--grid", "core"), 2, "--grid needs --out DIR"),
        (("--grid", "core", "--out", "x", "--rate", "3"), 2, "--rate does not go with --grid"),
        (("--grid", "core", "--out", "x", "--seeds", "2"), 2, "--seeds does not go with --grid"),
        (("--grid", "nothing", "--out", "x"), 2, "no grid 'nothing'"),
        (("--policy", "always_split", "--cluster", "8c,8c"), 2, "always_split splits nothing on 8c"),
        (("--policy", "psychic"), 2, ", oracle"),
        (("--traces", "x"), 2, "--traces goes with --grid"),
        (
            ("--plot", "/nowhere/at/all.png", *SHORT, "--policy", "kvferry"),
            1,
            "cannot write /nowhere/at/all.png",
        ),
    ],
)
def test_what_is_wrong_is_one_line(call, arguments, code, told) -> None:  # type: ignore[no-untyped-def]
    found, out, err = call(*arguments, "--jobs", "1")
    assert (found, out) == (code, "")
    assert told in err
    assert len(err.strip().splitlines()) == 1


def test_other_clusters_get_the_same_requests(call) -> None:  # type: ignore[no-untyped-def]
    arguments = (*SHORT, "--policy", "kvferry,always_split", "--jobs", "1")
    both = json.loads(call(*arguments, "--cluster", "4p4d,8c", "--json")[1])
    alone = json.loads(call(*SHORT, "--policy", "kvferry", "--cluster", "8c", "--jobs", "1", "--json")[1])
    assert both["cluster"] == "4p4d"
    assert list(both["policies"]) == ["kvferry", "always_split"]
    assert both["against"] == {"8c": {"policies": alone["policies"]}}
    assert "kvferry @8c" in call(*arguments, "--cluster", "4p4d,8c")[1]


def test_what_cannot_be_printed_is_one_line(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    arguments = (*SHORT, "--policy", "kvferry", "--jobs", "1")
    for form in ((), ("--json",)):
        words = [sys.executable, "-m", "kvferry.integrations.cli.app", "simulate", *arguments, *form]
        with open("/dev/full", "w") as full:
            done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr == "kvferry: cannot write to standard output: No space left on device\n"


def test_a_reader_that_went_away_is_no_failure() -> None:
    arguments = (*SHORT, "--policy", "kvferry", "--jobs", "1", "--json")
    words = [sys.executable, "-m", "kvferry.integrations.cli.app", "simulate", *arguments]
    ours, theirs = os.pipe()
    os.close(ours)
    done = subprocess.run(words, stdout=theirs, stderr=subprocess.PIPE, text=True, check=False)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_plot_that_cannot_be_written_is_found_out_before_the_work(call, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    def never(*_: object) -> None:
        raise AssertionError("it was simulated")

    monkeypatch.setattr("kvferry.integrations.cli.simulate.do", never)
    code, _, err = call(*SHORT, "--plot", "/nowhere/at/all.png")
    assert code == 1
    assert "there is no folder /nowhere/at" in err


def test_without_requests_there_are_no_shares(call) -> None:  # type: ignore[no-untyped-def]
    arguments = ("--workload", "steady", "--rate", "0.01", "--duration", "0.01", "--policy", "kvferry")
    code, out, _ = call(*arguments, "--jobs", "1", "--json")
    row = json.loads(out)["policies"]["kvferry"]
    assert (code, row["requests"]) == (0, 0.0)
    assert [row[key] for key in ("slo_attainment", "fair_attainment", "loss_mean", "split_share")] == [
        None
    ] * 4
    shown = call(*arguments, "--jobs", "1")[1]
    assert "100.0%" not in shown
    assert "no request arrived" in shown


def test_events_that_do_nothing_are_told(call, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    events = tmp_path / "events.toml"
    events.write_text(
        '[[event]]\ntime_s = 99\ndies = "d0"\n[[event]]\ntime_s = 2\nreturns = "d1"\n'
        '[[event]]\ntime_s = 1\ndies = "d2"\n[[event]]\ntime_s = 2\nreturns = "d2"\n'
    )
    code, _, err = call(*SHORT, "--policy", "kvferry", "--jobs", "1", "--json", "--events", str(events))
    assert code == 0
    assert err.splitlines() == [
        "kvferry: this event had no effect: d1 returns at 2 s: it did not die before",
        "kvferry: this event had no effect: d0 dies at 99 s: after the end of the run, at 8 s",
    ]


def test_a_goodput_below_the_first_rate_is_no_zero() -> None:
    row = pool([{"goodput_rps": 0.0, "fair_goodput_rps": 0.0, "slo_attainment": 0.1}])
    points = [{"seed": 0, "rate_rps": 0.5, "slo_attainment": None, "fair_attainment": None}]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(policies_table({"kvferry": {**row, "points": points}}, "title"))
    shown = console.export_text()
    assert "<0.5" in shown
    assert "regret" not in shown
    assert "fair" in shown


def test_a_log_gets_lines_of_long_work(capsys) -> None:  # type: ignore[no-untyped-def]
    with progress(2, every_s=0.01) as (advance, _):
        advance(1, "kvferry seed 0")
        time.sleep(0.1)
    assert "simulating: 1.0 of 2 done" in capsys.readouterr().err


def test_events_reach_the_cluster(call, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    events = tmp_path / "events.toml"
    events.write_text(
        "[[event]]\ntime_share = 0.5\nload_factor = 3\n"
        '[[event]]\ntime_s = 4\ndies = "d0"\n[[event]]\ntime_s = 4\ndies = "d1"\n'
    )
    plot = tmp_path / "run.png"
    arguments = (*SHORT, "--policy", "always_split", "--jobs", "1", "--json")
    plain = json.loads(call(*arguments)[1])["policies"]["always_split"]
    code, out, _ = call(*arguments, "--events", str(events), "--plot", str(plot))
    found = json.loads(out)["policies"]["always_split"]
    assert code == 0
    assert found["requests"] > 1.5 * plain["requests"]
    assert found["rescued"] + found["failed"] > 0
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_goodput_and_its_curves(call, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """A worker with room for a few requests, so that the scan ends soon."""
    cluster, plot = tmp_path / "one.toml", tmp_path / "curves.png"
    cluster.write_text(
        '[[worker]]\nrole = "colocated"\nmodel = "Qwen/Qwen3-32B"\ngpu = "h200"\ntp = 2\n'
        "max_total_tokens = 8000\nmax_running_requests = 4\n"
    )
    code, out, _ = call(
        *("--workload", "steady", "--rate", "0.2", "--duration", "30", "--cluster", str(cluster)),
        *("--policy", "least_load", "--find-goodput", "--plot", str(plot), "--jobs", "1", "--json"),
    )
    found = json.loads(out)["policies"]["least_load"]
    assert code == 0
    assert found["offered_rps"] < 1.0
    assert 0 < found["goodput_rps"] < 2
    rates = [point["rate_rps"] for point in found["points"] if (point["slo_attainment"] or 0) >= 0.9]
    assert max(rates) == found["goodput_rps"]
    assert any(point["slo_attainment"] is None for point in found["points"])
    assert found["fair_goodput_rps"] <= found["goodput_rps"]
    assert plot.read_bytes().startswith(b"\x89PNG")

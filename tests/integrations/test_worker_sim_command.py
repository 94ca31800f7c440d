"""`kvferry worker-sim` as a process: what it prints, how it ends, what it refuses."""

import json
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvferry.integrations.cli.app import app
from kvferry.integrations.cli.errors import run
from kvferry.integrations.sglang.local.ports import free_ports

COMMAND = [sys.executable, "-m", "kvferry.integrations.cli.app"]


@contextmanager
def started(*words: str) -> Iterator[tuple[subprocess.Popen[str], Any]]:
    process = subprocess.Popen(
        [*COMMAND, *words, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.loads(answer.read())


@pytest.mark.parametrize(
    "words",
    [
        ("worker-sim", "--cluster", "2p2d4c", "--port", "0"),
        ("local", "up", "--simulated", "--prefill", "2", "--decode", "2", "--colocated", "4"),
    ],
)
def test_a_cluster_tells_where_it_is_and_ends_when_told(words: tuple[str, ...]) -> None:
    with started(*words) as (process, told):
        roles = [worker["role"] for worker in told["workers"]]
        assert sorted(roles) == ["colocated"] * 4 + ["decode"] * 2 + ["prefill"] * 2
        for worker in told["workers"]:
            mode = get(worker["url"] + "/model_info")["disaggregation_mode"]
            assert mode == ("null" if worker["role"] == "colocated" else worker["role"])
            if worker["bootstrap_port"]:
                assert get(f"http://127.0.0.1:{worker['bootstrap_port']}/route")["attn_tp_size"] == 2
        serve = shlex.split(told["serve"])
        assert serve[:2] == ["kvferry", "serve"]
        assert {worker["url"] for worker in told["workers"]} <= set(serve)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_ports_count_up_and_a_taken_one_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", port)):
        assert run(app, ["worker-sim", "--role", "decode", "--port", str(port)]) == 1
    said = capsys.readouterr().err
    assert str(port) in said
    assert said.count("\n") == 1
    with started("worker-sim", "--role", "prefill", "--port", str(port)) as (process, told):
        (worker,) = told["workers"]
        assert (worker["url"], worker["bootstrap_port"]) == (f"http://127.0.0.1:{port}", port + 1)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0


@pytest.mark.parametrize(
    ("words", "about"),
    [
        (["worker-sim"], "--cluster"),
        (["worker-sim", "--cluster", "8c", "--role", "decode"], "--cluster"),
        (["worker-sim", "--cluster", "nowhere"], "nowhere"),
        (["worker-sim", "--role", "decode", "--gpu", "abacus"], "abacus"),
        (["worker-sim", "--role", "prefill", "--local-prefill"], "local-prefill"),
        (["worker-sim", "--role", "decode", "--time-scale", "0"], "time_scale"),
        (["worker-sim", "--role", "decode", "--path-class", "pigeon"], "pigeon"),
        (["worker-sim", "--role", "decode", "--path-class", "pigeon"], "--path-class"),
        (["worker-sim", "--cluster", "4p4d", "--tp", "2"], "--tp goes with --role"),
        (["worker-sim", "--cluster", "4p4d", "--local-prefill"], "--local-prefill goes with --role"),
        (["worker-sim", "--role", "decode", "--bootstrap-port", "5"], "--bootstrap-port"),
        (["worker-sim", "--cluster", "8c", "--bootstrap-port", "5"], "--bootstrap-port"),
        (["worker-sim", "--role", "colocated", "--transport", "nixl"], "--transport"),
        (
            ["worker-sim", "--cluster", "2p2d4c", "--port", "65533"],
            "ports 65533 to 65542: the last port is 65535",
        ),
        (
            ["worker-sim", "--cluster", "2p2d4c", "--bootstrap-port", "65535"],
            "ports 65535 to 65536: the last port is 65535",
        ),
        (["local", "up", "--simulated", "--worker-args", "--x"], "--worker-args"),
        (["local", "up", "--simulated", "--page-size", "1"], "--page-size"),
        (["local", "up", "--time-scale", "2"], "--time-scale"),
        (["local", "up", "--simulated", "--time-scale", "-1"], "time_scale"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], words: list[str], about: str
) -> None:
    assert run(app, words) == 2
    said = capsys.readouterr().err
    assert about in said
    assert said.count("\n") == 1


def test_the_demo_runs_without_sglang(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KVFERRY_STATE_DIR", str(tmp_path))
    monkeypatch.setitem(sys.modules, "sglang", None)
    assert run(app, ["local", "demo", "--simulated", "--once", "--documents", "1", "--json"]) == 0
    requests = json.loads(capsys.readouterr().out)["requests"]
    assert {one["outcome"]["status"] for one in requests} == {"ok"}
    assert sum(one["request"]["prompt_tokens"] >= 2500 for one in requests) == 1

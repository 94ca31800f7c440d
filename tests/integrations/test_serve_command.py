"""`kvferry serve`: sglang-router's command line, and one clear line for everything wrong."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from kvferry.integrations.cli import serve
from kvferry.integrations.cli.app import app
from kvferry.integrations.cli.errors import run
from kvferry.integrations.cli.router_flags import folded
from kvferry.integrations.sglang.poller import Target
from kvferry.policy.worker import Role

A, B, C = "http://10.0.0.1:30000", "http://10.0.0.2:30000", "http://10.0.0.3:30000"


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The settings with which the router would have been started."""
    seen: list[Any] = []

    async def started(settings: Any, _: Any) -> None:
        seen.append(settings)

    monkeypatch.setattr(serve, "_serve", started)
    monkeypatch.setattr(serve, "_log_to", lambda *_: None)
    for name in [name for name in os.environ if name.startswith("KVFERRY_")]:
        monkeypatch.delenv(name)
    return seen


@pytest.mark.parametrize(
    ("line", "targets"),
    [
        (f"--worker-urls {A} {B} {C}", [Target(A), Target(B), Target(C)]),
        (f"--worker-urls {A} --worker-urls {B} --port 1", [Target(A), Target(B)]),
        ("--worker-urls localhost:30000", [Target("http://localhost:30000")]),
        (f"--worker-urls {A}/", [Target(A)]),
        (f"--prefill {A} 8998 --decode {B}", [Target(A, Role.PREFILL, 8998), Target(B, Role.DECODE)]),
        (f"--prefill {A} none --decode {B}", [Target(A, Role.PREFILL), Target(B, Role.DECODE)]),
        (f"--prefill {A} --decode {B}", [Target(A, Role.PREFILL), Target(B, Role.DECODE)]),
        (
            f"--pd-disaggregation --prefill {A} 8998 --prefill {B} 8999 --decode {C} --policy cache_aware",
            [Target(A, Role.PREFILL, 8998), Target(B, Role.PREFILL, 8999), Target(C, Role.DECODE)],
        ),
        (
            f"--worker-urls {A} --prefill {B} 1 --decode {C}",
            [Target(A), Target(B, Role.PREFILL, 1), Target(C, Role.DECODE)],
        ),
    ],
)
def test_sglang_routers_flags_name_the_same_workers(
    settings: list[Any], line: str, targets: list[Target]
) -> None:
    assert run(app, ["serve", *line.split()]) == 0
    assert list(settings[0].targets) == targets


def test_its_other_flags_are_taken_too(settings: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    line = f"--worker-urls {A} --host 0.0.0.0 --port 3001 --api-key k --request-timeout-secs 60"
    line += " --log-level warning --prometheus-port 29000 --max-payload-size 1000 --policy cache_aware"
    line += " --prefill-policy cache_aware --decode-policy random --worker-startup-timeout-secs 5"
    line += " --worker-startup-check-interval 1"
    assert run(app, ["serve", *line.split()]) == 0
    one = settings[0]
    assert (one.host, one.port, one.request_timeout_secs, one.log_level) == ("0.0.0.0", 3001, 60.0, "warning")
    assert (one.prometheus_port, one.max_payload_size, one.policy) == (29000, 1000, "kvferry")
    assert one.api_key == SecretStr("k")
    assert "'cache_aware' places within a mode" in " ".join(capsys.readouterr().err.split())


def test_the_environment_counts_and_flags_count_more(
    settings: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVFERRY_PORT", "1234")
    monkeypatch.setenv("KVFERRY_SLO_TTFT_S", "0.5")
    assert run(app, ["serve", "--worker-urls", A, "--slo-ttft-s", "0.7"]) == 0
    assert (settings[0].port, settings[0].slo_ttft_s) == (1234, 0.7)


def test_values_are_folded_into_repeated_flags() -> None:
    assert folded(["--worker-urls", "a", "b", "--port", "1"]) == [
        "--worker-urls",
        "a",
        "--worker-urls",
        "b",
        "--port",
        "1",
    ]
    assert folded(["--prefill", "a", "NONE", "--x"]) == ["--prefill", "a", "--x"]
    assert folded(["--prefill"]) == ["--prefill"]


USAGE = {
    "": "no workers",
    "--worker-urls": "requires an argument",
    "--worker-urls http://h:99999": "http://h:99999",
    "--worker-urls http://[::1": "http://[::1",
    "--worker-urls ftp://h": "ftp://h",
    "--worker-urls 8998": "8998",
    f"--worker-urls {A} {A}": A,
    f"--prefill {A} port --decode {B}": "port",
    f"--prefill {A} 70000 --decode {B}": "70000",
    f"--prefill {A} 1 2 --decode {B}": "--prefill",
    f"--worker-urls {A} --bogus": "--bogus",
    f"--worker-urls {A} --port x": "--port",
    f"--worker-urls {A} --port 99999": "--port",
    f"--worker-urls {A} --slo-ttft-s 0": "--slo-ttft-s",
    f"--worker-urls {A} --policy nope": "nope",
    f"--worker-urls {A} --policy coin(2)": "coin(2)",
    f"--worker-urls {A} --path-class x": "TRANSPORT=CLASS",
    "--worker-urls http://user:hunter2@h:1": "credentials",
    f"--worker-urls {A}/v1": "path",
}


@pytest.mark.parametrize("line", USAGE)
def test_wrong_usage_is_one_line_and_exit_code_2(
    settings: list[Any], capsys: pytest.CaptureFixture[str], line: str
) -> None:
    assert run(app, ["serve", *line.split()]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert USAGE[line] in told.err
    assert "hunter2" not in told.err
    assert not settings


def test_flags_of_sglang_router_that_mean_nothing_here_are_named_and_passed_over(
    settings: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    extra = "--cache-threshold 0.5 --disable-retries --request-id-headers x y --prefill-policy random"
    assert run(app, ["serve", *extra.split(), "--worker-urls", A, B]) == 0
    told = capsys.readouterr().err
    assert "--cache-threshold, --disable-retries, --request-id-headers, --prefill-policy" in told
    assert [target.url for target in settings[0].targets] == [A, B]
    assert run(app, ["serve", "--service-discovery", "--worker-urls", A]) == 2


@pytest.mark.parametrize(("name", "value"), [("PORT", "x"), ("PATH_CLASSES", "{"), ("SLO_ITL_S", "-1")])
def test_a_wrong_environment_is_one_line_too(
    settings: list[Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
) -> None:
    monkeypatch.setenv(f"KVFERRY_{name}", value)
    assert run(app, ["serve", "--worker-urls", A]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert name.lower() in told.lower().replace("-", "_")


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KVFERRY_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(serve, "_log_to", lambda *_: None)


def test_a_broken_config_fails_in_one_line(
    quiet: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "x.toml"
    config.write_text("[[path]\n")
    assert run(app, ["serve", "--worker-urls", A, "--port", "0", "--config", str(config)]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert str(config) in told


def test_a_port_in_use_fails_in_one_line(quiet: None, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run(app, ["serve", "--worker-urls", A, "--port", str(port)]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert f"127.0.0.1:{port}" in told


def test_an_unknown_path_class_fails_in_one_line(quiet: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["serve", "--worker-urls", A, "--port", "0", "--path-class", "mooncake=bogus"]) == 1
    assert "bogus" in capsys.readouterr().err


def test_it_serves_keeps_its_secrets_and_ends_cleanly(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "kvferry.integrations.cli.app",
        "serve",
        "--worker-urls",
        "http://127.0.0.1:9",
    ]
    command += ["--port", "0", "--api-key", "s3cr3t-key", "--log-level", "debug"]
    command += ["--redis", "redis://me:s3cr3t-pass@127.0.0.1:9/0"]
    env = {**os.environ, "KVFERRY_STATE_DIR": str(tmp_path), "COLUMNS": "300"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, text=True)
    assert process.stdout is not None
    lines = []
    deadline = time.monotonic() + 30.0
    while time.monotonic() < deadline:
        lines.append(process.stdout.readline())
        if "127.0.0.1:9" in lines[-1] and "Connect" in lines[-1]:
            break
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=30)
    told = "".join(lines) + rest
    assert process.returncode == 0
    assert "on http://127.0.0.1:" in told
    assert "Stopping." in told
    assert "Traceback" not in told
    assert "s3cr3t" not in told

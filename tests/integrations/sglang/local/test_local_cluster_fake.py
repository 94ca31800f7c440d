"""A cluster's life with stand-ins for SGLang: ready, failing, interrupted, restarted; and the command."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvferry.integrations.cli.app import app
from kvferry.integrations.cli.errors import run
from kvferry.integrations.sglang.local import cluster as cluster_module
from kvferry.integrations.sglang.local.cluster import LocalCluster
from kvferry.integrations.sglang.local.spec import WorkerSpec
from kvferry.integrations.sglang.local.worker import LocalWorkerError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="local workers need Linux")

HEALTHY = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b'{"version": "fake"}')
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
BROKEN = "import sys; print('loading'); sys.exit('ValueError: the model is too large')"

Pretend = Callable[[dict[str, str]], None]


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Pretend:
    """Let workers of a role run a script instead of SGLang; roles not named are healthy."""

    def install(scripts: dict[str, str]) -> None:
        def command(spec: WorkerSpec, options: object, model: Path, port: int, spare: int) -> list[str]:
            return [sys.executable, "-c", scripts.get(spec.role, HEALTHY), str(port)]

        monkeypatch.setattr("kvferry.integrations.sglang.local.worker.worker_command", command)
        monkeypatch.setattr(cluster_module, "missing_requirement", lambda specs: None)
        monkeypatch.setattr(cluster_module, "cached_model", lambda shape: Path("/models/none"))

    return install


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_all_workers_become_ready_and_are_gone_afterwards(pretend: Pretend) -> None:
    pretend({})
    states: list[tuple[str, ...]] = []
    specs = [WorkerSpec("colocated"), WorkerSpec("prefill", "nixl"), WorkerSpec("decode", "nixl")]
    watch = lambda workers: states.append(tuple(worker.state for worker in workers))  # noqa: E731
    with LocalCluster(specs, on_progress=watch) as cluster:
        pids = [worker.pid for worker in cluster.workers]
        assert all(alive(pid) for pid in pids)
        assert [worker.name for worker in cluster.workers] == [
            "colocated-1",
            "prefill-nixl-1",
            "decode-nixl-1",
        ]
        assert [worker.bootstrap_port is None for worker in cluster.workers] == [True, False, True]
        assert cluster.of("prefill", "mooncake") == []
        assert cluster.workers[0].server_info() == {"version": "fake"}
        with pytest.raises(LocalWorkerError, match="started already"):
            cluster.start()
        log_dir = cluster.log_dir
    assert states[0] == ("starting",) * 3
    assert states[-1] == ("ready",) * 3
    assert not any(alive(pid) for pid in pids)
    assert log_dir
    assert not log_dir.exists()


def test_one_failure_ends_all_and_says_why(pretend: Pretend, tmp_path: Path) -> None:
    pretend({"decode": BROKEN})
    specs = [WorkerSpec("colocated"), WorkerSpec("prefill", "nixl"), WorkerSpec("decode", "nixl")]
    cluster = LocalCluster(specs, log_dir=tmp_path)
    with pytest.raises(
        LocalWorkerError, match=r"decode-nixl-1 .*ValueError: the model is too large"
    ) as caught:
        cluster.start()
    assert str(tmp_path / "decode-nixl-1.log") in str(caught.value)
    assert caught.value.log_tail[-1] == "ValueError: the model is too large"
    assert not any(alive(worker.pid) for worker in cluster.workers)


def test_a_worker_that_never_answers_is_given_up(pretend: Pretend, tmp_path: Path) -> None:
    pretend({"colocated": "import time; time.sleep(300)"})
    cluster = LocalCluster([WorkerSpec("colocated")], log_dir=tmp_path, timeout_s=1)
    with pytest.raises(LocalWorkerError, match="not ready after 1 s"):
        cluster.start()
    assert not alive(cluster.workers[0].pid)


def test_an_interrupt_while_starting_leaves_nothing(pretend: Pretend) -> None:
    pretend({"colocated": "import time; time.sleep(300)"})

    def interrupt(workers: object) -> None:
        raise KeyboardInterrupt

    cluster = LocalCluster([WorkerSpec("colocated")], on_progress=interrupt)
    with pytest.raises(KeyboardInterrupt):
        cluster.start()
    assert not alive(cluster.workers[0].pid)
    assert cluster.log_dir is None


def test_a_killed_worker_comes_back_on_its_ports(pretend: Pretend) -> None:
    pretend({})
    with LocalCluster([WorkerSpec("colocated")]) as cluster:
        worker = cluster.workers[0]
        before = (worker.url, worker.pid)
        worker.kill()
        assert not worker.alive
        assert not alive(before[1])
        worker.restart(60)
        assert worker.url == before[0]
        assert worker.pid != before[1]
        assert worker.check()


def test_the_command_fails_in_one_line_and_leaves_nothing(
    pretend: Pretend, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pretend({"prefill": BROKEN})
    assert run(app, ["local", "up", "--json", "--log-dir", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[-1].startswith("kvferry: prefill-mooncake-1 ")
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    "wrong",
    [["--decode", "0"], ["--prefill", "0"], ["--colocated", "0", "--prefill", "0", "--decode", "0"],
     ["--transport", "rdma"], ["--page-size", "0"]],
)  # fmt: skip
def test_wrong_usage_exits_with_2(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["local", "up", *wrong]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_the_command_prints_one_object_and_stops_on_interrupt(
    pretend: Pretend, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(cluster: LocalCluster) -> None:
        raise KeyboardInterrupt

    pretend({})
    monkeypatch.setattr("kvferry.integrations.cli.local._watch", interrupt)
    assert run(app, ["local", "up", "--json", "--transport", "nixl"]) == 0
    workers = json.loads(capsys.readouterr().out)["workers"]
    assert [worker["role"] for worker in workers] == ["colocated", "prefill", "decode"]
    assert [worker["transport"] for worker in workers] == [None, "nixl", "nixl"]
    assert not any(alive(worker["pid"]) for worker in workers)


def test_sglang_not_installed_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run(app, ["local", "up"]) == 1
    said = capsys.readouterr().err.strip()
    assert said.startswith("kvferry: sglang is not installed")
    assert "kvferry[sglang]" in said
    assert "\n" not in said

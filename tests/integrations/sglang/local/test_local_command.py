"""The command line and environment of a worker, and what is said when something is missing."""

import importlib.util
from pathlib import Path

import pytest

from kvferry.integrations.sglang.local import command
from kvferry.integrations.sglang.local.command import missing_requirement, worker_command, worker_env
from kvferry.integrations.sglang.local.cpu_plugin import ENABLE_ENV, TRANSPORT_ENV
from kvferry.integrations.sglang.local.spec import TRANSPORTS, Role, WorkerOptions, WorkerSpec, specs

MODEL = Path("/models/tiny")


def flag(argv: list[str], name: str) -> str | None:
    return argv[argv.index(name) + 1] if name in argv else None


def build(spec: WorkerSpec, options: WorkerOptions | None = None) -> list[str]:
    return worker_command(spec, options or WorkerOptions(), MODEL, 21000, 21001)


def test_a_colocated_worker_gets_no_disaggregation_flag() -> None:
    argv = build(WorkerSpec("colocated"))
    assert not [word for word in argv if word.startswith("--disaggregation")]
    assert flag(argv, "--port") == "21000"
    assert flag(argv, "--model-path") == str(MODEL)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("role", "bootstrap"), [("prefill", "21001"), ("decode", None)])
def test_a_pair_gets_its_transport_and_only_prefill_a_bootstrap_port(
    role: Role, bootstrap: str | None, transport: str
) -> None:
    argv = build(WorkerSpec(role, transport))  # type: ignore[arg-type]
    assert flag(argv, "--disaggregation-mode") == role
    assert flag(argv, "--disaggregation-transfer-backend") == transport
    assert flag(argv, "--disaggregation-bootstrap-port") == bootstrap


def test_options_reach_the_worker_and_extra_arguments_come_last() -> None:
    options = WorkerOptions(
        page_size=16, max_total_tokens=4096, max_running_requests=3, extra_args=("--a", "1")
    )
    argv = build(WorkerSpec("colocated", extra_args=("--b", "2")), options)
    assert flag(argv, "--page-size") == "16"
    assert flag(argv, "--max-total-tokens") == "4096"
    assert flag(argv, "--max-running-requests") == "3"
    assert argv[-4:] == ["--a", "1", "--b", "2"]


def test_the_environment_enables_the_plugin_and_puts_the_stubs_first() -> None:
    options = WorkerOptions(bootstrap_timeout_s=7, waiting_timeout_s=9, env=(("OMP_NUM_THREADS", "2"),))
    env = worker_env(WorkerSpec("prefill", "nixl"), options, {"PATH": "/bin", "PYTHONPATH": "/mine"})
    assert env[ENABLE_ENV] == "1"
    assert env[TRANSPORT_ENV] == "nixl"
    assert env["PYTHONPATH"].split(":") == [str(command.STUBS), "/mine"]
    assert env["SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT"] == "7"
    assert env["SGLANG_DISAGGREGATION_WAITING_TIMEOUT"] == "9"
    assert env["OMP_NUM_THREADS"] == "2", "the caller's own variables win"
    assert env["PATH"] == "/bin"


def test_the_stubs_are_there_for_every_package_they_stand_for() -> None:
    names = {path.stem for path in command.STUBS.glob("*.py")}
    assert names == {"triton", "torchvision", "sgl_kernel"}


@pytest.mark.parametrize(
    ("role", "transport"), [("colocated", "nixl"), ("prefill", None), ("decode", "rdma"), ("both", None)]
)
def test_a_worker_that_makes_no_sense_is_refused(role: str, transport: str | None) -> None:
    with pytest.raises(ValueError, match=r"transport|role"):
        WorkerSpec(role, transport)  # type: ignore[arg-type]


def test_specs_lists_every_worker_of_a_cluster() -> None:
    assert [spec.role for spec in specs(2, 1, 1, "nixl")] == ["colocated", "colocated", "prefill", "decode"]


@pytest.mark.parametrize("module", ["sglang", "mooncake"])
def test_what_is_not_installed_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else object())
    said = missing_requirement([WorkerSpec("prefill", "mooncake")])
    assert said is not None
    assert said.startswith(module)
    assert "make setup" in said
    assert "\n" not in said


def test_a_missing_libibverbs_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr("ctypes.CDLL", refuse)
    assert "libibverbs1" in str(missing_requirement([WorkerSpec("decode", "mooncake")]))
    assert missing_requirement([WorkerSpec("decode", "nixl")]) is None, "NIXL does not need it"

"""Real SGLang workers on the CPU: right answers, and nothing left behind."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kvferry.integrations.sglang.local.cluster import LocalCluster
from kvferry.integrations.sglang.local.command import missing_requirement
from kvferry.integrations.sglang.local.spec import TRANSPORTS, Transport, WorkerSpec

LENGTHS = (16, 300, 4000)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_pair_answers_exactly_like_a_colocated_worker(
    cluster: LocalCluster, direct: Any, prompt_ids: Any, transport: Transport, stream: bool
) -> None:
    (single,) = cluster.of("colocated")
    (prefill,), (decode,) = cluster.of("prefill", transport), cluster.of("decode", transport)
    for length in LENGTHS:
        ids = prompt_ids(length)
        expected = await direct.colocated(single, ids, stream=stream)
        assert len(expected) == 16
        assert await direct.split(prefill, decode, ids, stream=stream) == expected


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_twelve_at_once_are_not_mixed_up(
    cluster: LocalCluster, direct: Any, prompt_ids: Any, transport: Transport
) -> None:
    (single,) = cluster.of("colocated")
    (prefill,), (decode,) = cluster.of("prefill", transport), cluster.of("decode", transport)
    prompts = [prompt_ids(40 * n, seed=n) for n in range(1, 13)]
    expected = [await direct.colocated(single, ids) for ids in prompts]
    assert len({tuple(output) for output in expected}) > 6, "different prompts must differ in their answers"
    assert await asyncio.gather(*(direct.split(prefill, decode, ids) for ids in prompts)) == expected


def test_workers_tell_their_role_and_transport(cluster: LocalCluster) -> None:
    for worker in cluster.workers:
        info = worker.server_info()
        assert info["disaggregation_mode"] == ("null" if worker.role == "colocated" else worker.role)
        if worker.transport:
            assert info["disaggregation_transfer_backend"] == worker.transport
        if worker.role == "prefill":
            assert info["disaggregation_bootstrap_port"] == worker.bootstrap_port


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_killed_half_returns_and_the_pair_works_again(
    cluster: LocalCluster, direct: Any, prompt_ids: Any, transport: Transport, role: Any
) -> None:
    (single,) = cluster.of("colocated")
    (prefill,), (decode,) = cluster.of("prefill", transport), cluster.of("decode", transport)
    (victim,) = cluster.of(role, transport)
    ids = prompt_ids(500, seed=9)
    expected = await direct.colocated(single, ids)
    await direct.split(prefill, decode, ids)
    victim.kill()
    assert not victim.alive
    await asyncio.to_thread(victim.restart)
    assert await direct.split(prefill, decode, ids) == expected


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_the_command_ends_no_process_is_left(number: signal.Signals) -> None:
    """Started as a shell starts a background job, which ignores SIGINT until it says otherwise."""
    missing = missing_requirement([WorkerSpec("colocated")])
    if missing:
        pytest.skip(missing)
    words = ["local", "up", "--json", "--prefill", "0", "--decode", "0"]
    command = subprocess.Popen(
        [sys.executable, "-m", "kvferry.integrations.cli.app", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert command.stdout
    (worker,) = json.loads(command.stdout.readline())["workers"]
    group = members(worker["pid"])
    assert len(group) >= 3, "the server, the scheduler and the detokenizer"
    command.send_signal(number)
    assert command.wait(60) == (0 if number != signal.SIGKILL else -signal.SIGKILL)
    deadline = time.monotonic() + 30
    while members(worker["pid"]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert members(worker["pid"]) == []


def members(group: int) -> list[int]:
    """Return the processes of a process group, the dead but not yet collected ones too."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            pgrp = os.getpgid(int(folder.name))
        except ProcessLookupError:
            continue
        if pgrp == group:
            found.append(int(folder.name))
    return found

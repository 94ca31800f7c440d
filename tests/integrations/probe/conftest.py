import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

HOST = Path(__file__).with_name("probe_host.py")


@dataclass
class Host:
    """An agent's process."""

    process: subprocess.Popen[str]
    address: str

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


Start = Callable[..., Host]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts agents: `prefix` runs them elsewhere, `environment` is added to theirs."""
    hosts: list[Host] = []

    def started(
        name: str,
        host: str = "127.0.0.1",
        prefix: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        **options: object,
    ) -> Host:
        told = json.dumps({"name": name, "host": host, "port": 0, **options})
        process = subprocess.Popen(
            [*prefix, sys.executable, str(HOST), told],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        hosts.append(Host(process, ""))
        assert process.stdout is not None
        hosts[-1].address = f"{host}:{int(process.stdout.readline())}"
        return hosts[-1]

    yield started
    for one in hosts:
        one.process.terminate()
    for one in hosts:
        try:
            one.process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            one.process.kill()
            one.process.communicate()

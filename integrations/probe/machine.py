"""What an agent tells of the machine it runs on."""

import os
import platform
import socket
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path

from kvferry.integrations.probe.messages import Described
from kvferry.integrations.transports.errors import Missing
from kvferry.integrations.transports.registry import names, open_transport

__all__ = ["describe", "host_id"]

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
GPUS = Path("/proc/driver/nvidia/gpus")
RDMA_DEVICES = Path("/sys/class/infiniband")
LIBRARIES = ("kvferry", "mooncake-transfer-engine", "mooncake-transfer-engine-non-cuda", "nixl", "torch")


def describe(name: str | None = None, agent_id: str = "") -> Described:
    """Blocking: loads each transport once. `name`: of this host, by default its own."""
    return Described(
        name=name or socket.gethostname(),
        host_id=host_id(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        gpus=tuple(_gpus()),
        rdma_devices=tuple(sorted(path.name for path in _inside(RDMA_DEVICES))),
        transports={transport: why_not(transport) for transport in names()},
        versions={"python": platform.python_version(), **_versions()},
        agent_id=agent_id,
    )


def host_id() -> str:
    """One for all processes, containers and network namespaces under one kernel."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


@cache
def why_not(transport: str) -> str:
    """ "" where a transport loads, else what to install."""
    try:
        open_transport(transport, "describe").close()
    except Missing as error:
        return str(error)
    return ""


def _gpus() -> Iterable[str]:
    for folder in sorted(_inside(GPUS)):
        try:
            told = (folder / "information").read_text(encoding="utf-8")
        except OSError:
            told = ""
        models = [line.partition(":")[2].strip() for line in told.splitlines() if line.startswith("Model:")]
        yield models[0] if models else folder.name


def _versions() -> dict[str, str]:
    found = {}
    for library in LIBRARIES:
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    return found


def _inside(folder: Path) -> Iterable[Path]:
    return folder.iterdir() if folder.is_dir() else ()

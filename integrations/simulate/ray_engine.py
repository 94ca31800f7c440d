"""Cells on a Ray cluster that is already there."""

import logging
import socket
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

from kvferry.integrations.cli.errors import CommandError
from kvferry.integrations.simulate.engine import Failure, Outcomes, failure
from kvferry.models.simulator.cell import Cell, Result, run_cell

# More than this at once would only fill the scheduler's memory.
IN_FLIGHT_PER_CPU = 2
CONNECT_S = 5.0
LOST = "the Ray worker that computed it died, twice"


def run_ray(
    cells: Sequence[Cell], address: str | None = None, work: Callable[[Cell], Result] = run_cell
) -> Outcomes:
    """One task of one CPU per cell; a task whose worker dies is tried once more. Workload files must lie at
    the same place on every node. CommandError when there is no Ray, no cluster, or another kvferry on it."""
    ray = _connected(address)
    cpus = int(ray.cluster_resources().get("CPU", 1))
    remote = ray.remote(num_cpus=1, max_retries=1)(work)
    waiting = list(reversed(cells))
    running: dict[Any, Cell] = {}
    try:
        while waiting or running:
            while waiting and len(running) < IN_FLIGHT_PER_CPU * cpus:
                cell = waiting.pop()
                running[remote.remote(cell)] = cell
            done, _ = ray.wait(list(running), num_returns=1)
            for task in done:
                cell = running.pop(task)
                try:
                    yield cell, ray.get(task)
                except ray.exceptions.WorkerCrashedError:
                    yield cell, Failure(LOST)
                except Exception as error:  # noqa: BLE001 - raised by the cell or by Ray, told with the cell
                    yield cell, failure(cell, getattr(error, "cause", None) or error)
    finally:
        for task in running:
            ray.cancel(task, force=True)


def _connected(address: str | None) -> Any:
    try:
        import ray
    except ImportError:
        raise CommandError("--engine ray needs Ray: pip install 'kvferry[ray]'") from None
    if not ray.is_initialized():
        _reachable(address)
        try:
            ray.init(address=address or "auto", log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = f" at {address}" if address else ""
            raise CommandError(
                f"no Ray cluster{where}: {error} (--ray-address HOST:PORT or RAY_ADDRESS names one)"
            ) from None
    own = metadata.version("kvferry")
    try:
        theirs = ray.get(ray.remote(num_cpus=0)(_version).remote())
    except Exception as error:  # noqa: BLE001 - whatever keeps a worker there from importing us
        raise CommandError(f"the Ray cluster's workers cannot import kvferry {own}: {error}") from None
    if theirs != own:
        raise CommandError(f"the Ray cluster has kvferry {theirs}, this is {own}: install the same on both")
    return ray


def _reachable(address: str | None) -> None:
    """CommandError when nothing listens at host:port, which Ray would try for minutes."""
    host, _, port = (address or "").rpartition("://")[2].partition("/")[0].rpartition(":")
    if not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except OSError as error:
        raise CommandError(f"no Ray cluster at {address}: {error.strerror or error}") from None


def _version() -> str:
    return metadata.version("kvferry")

"""The scheduler's load, taken on its own thread at the set interval and told from there on."""

import threading
import time
from typing import Any

import msgspec

from kvferry.integrations.sglang.plugin.wire import LoadRecord, LocalLoad


class LoadWatch:
    """Built on the scheduler's thread. `published` is called there whenever SGLang thinks of publishing."""

    def __init__(self, scheduler: Any, interval_s: float) -> None:
        self.thread = threading.get_ident()
        self._scheduler = scheduler
        self._interval_s = interval_s
        self._latest: Any = None
        self._local: LocalLoad | None = None
        self._next_s = 0.0

    def published(self, snapshot: Any) -> None:
        """SGLang skips most snapshots of a decode worker (`load_snapshot_publish_interval`): take our own
        when one is due. With `None` it has published none."""
        now_s = time.monotonic()
        if snapshot is None and now_s >= self._next_s:
            snapshot = self._scheduler.load_inquirer.get_loads()
        if snapshot is not None:
            feature = getattr(self._scheduler, "kvferry_local_prefill", None)
            self._local = feature.local_load() if feature is not None else None
            self._latest = snapshot
            self._next_s = now_s + self._interval_s

    def record(self, worker: str, **own: Any) -> LoadRecord:
        """The latest snapshot, from any thread. `own`: telemetry's own counters."""
        snapshot = self._latest
        load = numbers(snapshot) if snapshot is not None else {}
        taken_s = load.pop("timestamp", 0.0)
        return LoadRecord(
            worker=worker, time_s=time.time(), taken_s=taken_s, load=load, local=self._local, **own
        )


def numbers(snapshot: Any) -> dict[str, float]:
    """Every number of SGLang's LoadSnapshot; those of a section are `section.name`."""
    flat: dict[str, float] = {}
    for name in snapshot.__struct_fields__:
        value = getattr(snapshot, name)
        if isinstance(value, msgspec.Struct):
            flat |= {f"{name}.{inner}": number for inner, number in numbers(value).items()}
        elif isinstance(value, int | float) and not isinstance(value, bool):
            flat[name] = float(value)  # some are numpy's
    return flat

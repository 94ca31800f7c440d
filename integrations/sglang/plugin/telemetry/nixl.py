"""NIXL: descriptor lists are prepared, posted and awaited; each list says what it will move."""

import functools
import logging
import time
from collections.abc import Callable
from typing import Any

from kvferry.integrations.sglang.plugin.feature import Hook
from kvferry.integrations.sglang.plugin.telemetry.meter import Meter
from kvferry.integrations.sglang.plugin.telemetry.moves import Moves

log = logging.getLogger("kvferry.plugin")

MODULE = "sglang.srt.disaggregation.nixl.conn"
FAILURES = 3
LOCAL_SIDE = ""  # the peer name of a prepared list of this worker's own memory


class NixlCalls:
    """Counts into `moves`.

    The agent is no part of SGLang, so its methods are wrapped in the instance that a manager made. Bytes of
    prepared lists are exact: the length of every descriptor is kept when the list is prepared. Not counted
    are the bytes of prepared lists of state, which hybrid models have on a GPU.
    """

    def __init__(self, moves: Moves, meter: Meter) -> None:
        self._moves = moves
        self._meter = meter
        self._sizes: dict[
            int, tuple[Any, Any, Any]
        ] = {}  # by id: the handle, ends of its runs, their lengths
        self._failures = 0

    def hooks(self) -> tuple[Hook, ...]:
        manager = f"{MODULE}.NixlKVManager"
        return (
            Hook(f"{manager}.__init__", "after", self._agent_built),
            Hook(f"{manager}._prep_xfer_dlist", "after", self._prepared),
            Hook(f"{manager}._post_xfer", "around", self._busy),
            Hook(f"{manager}._await_handles", "around", self._busy),
            Hook(f"{manager}.send_aux", "around", self._aux),
        )

    def _agent_built(self, _: None, manager: Any, *args: Any, **kwargs: Any) -> None:
        agent = manager.agent
        agent.make_prepped_xfer = self._counting(agent.make_prepped_xfer, self._of_indices)
        agent.initialize_xfer = self._counting(agent.initialize_xfer, self._of_descriptors)

    def _prepared(self, handle: Any, manager: Any, peer: str, runs: Any, *args: Any, **kwargs: Any) -> None:
        if peer == LOCAL_SIDE:
            # runs: (address, length, device, stride, count); descriptors are numbered through all of them
            self._sizes[id(handle)] = (handle, runs[:, 4].cumsum(), runs[:, 1].astype("int64"))

    def _busy(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        began_s = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            self._moves.busy(began_s, time.perf_counter())

    def _aux(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._moves.aux(True)
        try:
            return original(*args, **kwargs)
        finally:
            self._moves.aux(False)

    def _counting(
        self, original: Callable[..., Any], measure: Callable[..., tuple[int, int]]
    ) -> Callable[..., Any]:
        @functools.wraps(original)
        def counted(*args: Any, **kwargs: Any) -> Any:
            began_s = time.perf_counter()
            handle = original(*args, **kwargs)
            ended_s = time.perf_counter()
            if self._failures < FAILURES:
                cpu_s = time.thread_time()
                try:
                    self._moves.called("nixl", *measure(*args))
                    self._moves.built(ended_s - began_s)
                except Exception:
                    self._failures += 1
                    log.exception("telemetry: counting what NIXL moves")
                self._meter.add(time.thread_time() - cpu_s)
            return handle

        return counted

    def _of_indices(self, _operation: str, side: Any, indices: Any, *args: Any) -> tuple[int, int]:
        """Descriptors and bytes of a transfer by indices into a prepared list."""
        _, ends, lengths = self._sizes.get(id(side), (None, None, None))
        if ends is None:
            return len(indices), 0
        if (lengths == lengths[0]).all():
            return len(indices), len(indices) * int(lengths[0])
        return len(indices), int(lengths[ends.searchsorted(indices, side="right")].sum())

    def _of_descriptors(self, _operation: str, descriptors: Any, *args: Any) -> tuple[int, int]:
        """Descriptors and bytes of a transfer that lists them."""
        count = int(descriptors.descCount())
        return count, sum(int(descriptors[i][1]) for i in range(count))

"""Mooncake: one blocking call per batch of (source, destination, length) blocks."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from kvferry.integrations.sglang.plugin.feature import Hook
from kvferry.integrations.sglang.plugin.telemetry.meter import Meter
from kvferry.integrations.sglang.plugin.telemetry.moves import Moves

MODULE = "sglang.srt.disaggregation.mooncake.conn"


class MooncakeCalls:
    """Counts into `moves` on the thread that took the chunk; calls that SGLang hands to other threads
    (its custom memory pool on NVLink) are not seen."""

    def __init__(self, moves: Moves, meter: Meter) -> None:
        self._moves = moves
        self._meter = meter

    def hooks(self) -> tuple[Hook, ...]:
        manager = f"{MODULE}.MooncakeKVManager"
        return (
            Hook(f"{manager}._transfer_data", "around", self._transfer),
            Hook(f"{manager}.send_aux", "around", self._aux),
        )

    def _transfer(
        self, original: Callable[..., int], manager: Any, session: Any, blocks: Sequence[tuple[int, int, int]]
    ) -> int:
        began_s = time.perf_counter()
        code = original(manager, session, blocks)
        ended_s = time.perf_counter()
        cpu_s = time.thread_time()
        if blocks:
            self._moves.called("mooncake", len(blocks), sum(int(length) for _, _, length in blocks))
            self._moves.busy(began_s, ended_s)
        self._meter.add(time.thread_time() - cpu_s)
        return code

    def _aux(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._moves.aux(True)
        try:
            return original(*args, **kwargs)
        finally:
            self._moves.aux(False)

"""What the parts of local prefill share: one scheduler's local requests and the rules they run by."""

import time
from dataclasses import dataclass, field
from typing import Any

from kvferry.integrations.sglang.plugin.localprefill.chunk import ChunkLength
from kvferry.integrations.sglang.plugin.localprefill.fairness import FairShare
from kvferry.integrations.sglang.plugin.localprefill.stall import StallMeter
from kvferry.integrations.sglang.plugin.settings import LocalPrefillSettings

AT_ONCE = 1 << 30  # decode steps since the last chunk, where no chunk has to be waited for


@dataclass(slots=True, eq=False)
class State:
    """`scheduler` is None until the feature has started in it. `queue`: local requests that hold no KV yet,
    first come first served. `decode_steps`: since the last chunk. `planning`: SGLang is choosing among
    `queue` just now. `closed`: the feature was turned off."""

    settings: LocalPrefillSettings
    scheduler: Any = None
    queue: list[Any] = field(default_factory=list)
    share: FairShare = field(init=False)
    chunk: ChunkLength = field(init=False)
    meter: StallMeter = field(default_factory=StallMeter)
    decode_steps: int = AT_ONCE
    planning: bool = False
    closed: bool = False
    accepted: int = 0
    aborted: int = 0
    deferred: int = 0

    def begin(self, scheduler: Any) -> None:
        """Bind to a scheduler. Raises ValueError for a share that is none."""
        limits = [self.settings.max_chunk_tokens, scheduler.max_prefill_tokens]
        if scheduler.chunked_prefill_size:
            limits.append(scheduler.chunked_prefill_size)
        self.chunk = ChunkLength(
            self.settings.itl_target_s,
            self.settings.min_chunk_tokens,
            min(limits),
            scheduler.page_size,
        )
        largest = scheduler.max_req_input_len + self.reserve_tokens_of(scheduler)
        self.share = FairShare(self.settings.share, largest)
        self.scheduler = scheduler

    def runs(self, scheduler: Any) -> bool:
        """Whether this is the scheduler it has started in."""
        return scheduler is not None and scheduler is self.scheduler and not self.closed

    def kv_tokens(self, req: Any) -> int:
        """What admitting a request takes: its prompt in whole pages (and what it had written before it was
        retracted), and SGLang's reserve for its first decode steps."""
        page = int(self.scheduler.page_size)
        tokens = len(req.origin_input_ids) + len(req.output_ids)
        return -(-tokens // page) * page + self.reserve_tokens_of(self.scheduler)

    def observe(self, prefill: bool) -> None:
        """A batch's result has been processed."""
        step = self.meter.ended(time.monotonic(), prefill)
        if step is None:
            return
        if step.tokens:
            self.chunk.observe_chunk(step.tokens, step.took_s)
        else:
            self.chunk.observe_decode(step.took_s)

    @staticmethod
    def reserve_tokens_of(scheduler: Any) -> int:
        """Of KV, per running request."""
        return int(scheduler.disagg_decode_prealloc_queue.num_reserved_decode_tokens)

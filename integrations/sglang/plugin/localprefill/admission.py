"""Which requests may claim KV memory: local ones by the formula for split ones, and both by their share."""

from typing import Any

from kvferry.integrations.sglang.plugin.localprefill.state import State


class Admission:
    """The choice of local requests, and hooks on DecodePreallocQueue, which admits the split ones."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._own = False  # the budget is being asked for local requests

    def local(self, running_batch: Any) -> list[Any]:
        """Those at the queue's head that fit. None while retracted requests wait for memory, as in stock.

        Where nothing else is there that could give memory back, the first goes to SGLang's own check,
        which knows what fits an empty pool.
        """
        scheduler, prealloc = self.state.scheduler, self.state.scheduler.disagg_decode_prealloc_queue
        if prealloc.retracted_queue:
            return []
        retractable = sum(len(req.origin_input_ids) + len(req.output_ids) for req in running_batch.reqs)
        self._own = True
        try:
            budget = prealloc._allocatable_token_budgets(retractable_tokens=retractable, count_retracted=True)
        finally:
            self._own = False
        transfers = scheduler.disagg_decode_transfer_queue.queue
        alone = not (running_batch.reqs or scheduler.waiting_queue or transfers or scheduler.chunked_req)
        fit: list[Any] = []
        for req in list(self.state.queue):
            tokens = self.state.kv_tokens(req)
            prompt_tokens = tokens - prealloc.num_reserved_decode_tokens
            need = prealloc._required_admission_tokens(req, prompt_tokens, 0, retractable)
            if need > budget and not (alone and not fit):
                break
            budget -= tokens
            fit.append(req)
        return fit

    def chunk_fits(self, chunk_tokens: int) -> bool:
        """Whether there is memory for the next chunk of the prompt that is being prefilled."""
        scheduler, prealloc = self.state.scheduler, self.state.scheduler.disagg_decode_prealloc_queue
        req = scheduler.chunked_req
        left = len(req.origin_input_ids) + len(req.output_ids) - req.prefix_len
        need = min(chunk_tokens, left) + 2 * scheduler.page_size
        return bool(prealloc._radix_full_available() + prealloc._radix_full_evictable() >= need)

    def split_waits(self, running_batch: Any) -> bool:
        """Whether a split request could use what a local one is about to take: memory, when its prefill
        worker waits for pages; a place in the running batch, when its KV is here."""
        scheduler = self.state.scheduler
        if any(waiting.waiting_for_input for waiting in scheduler.disagg_decode_prealloc_queue.queue):
            return True
        free = scheduler.max_running_requests - len(running_batch.reqs) - (scheduler.chunked_req is not None)
        return bool(scheduler.waiting_queue) and len(scheduler.waiting_queue) >= free

    def admitted(self, requests: list[Any], split_waits: bool) -> None:
        """Local requests got their memory."""
        for req in requests:
            self.state.share.charge("local", self.state.kv_tokens(req), split_waits)

    def count_active(self, count: int, prealloc: Any, *args: Any, **more: Any) -> int:
        """After _active_req_count: local requests that hold KV but are not in the running batch yet."""
        if not self.state.runs(prealloc.scheduler):
            return count
        return int(count) + len(self._between())

    def budget(self, tokens: int, prealloc: Any, *args: Any, **more: Any) -> int:
        """After _allocatable_token_budgets: less what the prompt being prefilled still needs, and, for split
        requests, less what the first local one needs when it is local's turn. Retracted requests are
        asked for with count_retracted=False; nothing is held back from them."""
        if not self.state.runs(prealloc.scheduler):
            return tokens
        scheduler = self.state.scheduler
        req = scheduler.chunked_req
        if req is not None:
            left = len(req.origin_input_ids) + len(req.output_ids) - req.kv.kv_allocated_len
            page = int(scheduler.page_size)
            return int(tokens - -(-max(0, left) // page) * page)
        new = more.get("count_retracted", True) and not self._own
        if new and self.state.queue and self.state.share.turn == "local":
            return tokens - self._head_tokens(prealloc, more.get("retractable_tokens") or 0)
        return tokens

    def split_admitted(self, result: Any, prealloc: Any, *args: Any, **more: Any) -> None:
        """After pop_preallocated: split requests got their memory."""
        if self.state.runs(prealloc.scheduler):
            for admitted in result[0]:
                tokens = self.state.kv_tokens(admitted.req)
                self.state.share.charge("split", tokens, bool(self.state.queue))

    def _head_tokens(self, prealloc: Any, retractable: int) -> int:
        head = self.state.queue[0]
        tokens = self.state.kv_tokens(head)
        prompt_tokens = tokens - prealloc.num_reserved_decode_tokens
        return int(prealloc._required_admission_tokens(head, prompt_tokens, 0, retractable))

    def _between(self) -> list[Any]:
        scheduler = self.state.scheduler
        seen = {id(req) for req in scheduler.running_batch.reqs}
        last = scheduler.last_batch
        found = list(last.reqs) if last and last.forward_mode.is_extend() else []
        if scheduler.chunked_req is not None:
            found.append(scheduler.chunked_req)
        between = []
        for req in found:
            if id(req) not in seen and not req.finished() and req.kv.holds_kv:
                seen.add(id(req))
                between.append(req)
        return between

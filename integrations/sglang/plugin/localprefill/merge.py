"""How locally prefilled requests join the running batch. SGLang's decode loop has no such step."""

from typing import Any


def settled(scheduler: Any, running_batch: Any) -> Any:
    """The running batch with what the last prefill batch left behind.

    As Scheduler.get_next_batch_to_run does it on a colocated worker: the prompt that is not finished yet is
    put aside (its KV goes to the cache), an abort that waited for its chunk is carried out, all else joins.
    """
    if scheduler._pending_chunked_abort_req is not None:
        if scheduler.enable_overlap and scheduler.chunked_req is scheduler._pending_chunked_abort_req:
            # its chunk may still be written, to pages that a transfer from a peer could get next
            scheduler.device_module.synchronize()
        scheduler.process_pending_chunked_abort()
    aside = set()
    chunked = scheduler.chunked_req
    if chunked is not None:
        aside.add(chunked)
        if chunked.extend_end > chunked.prefix_len:
            scheduler.stash_chunked_request(chunked)
    last = scheduler.last_batch
    if last and last.forward_mode.is_extend():
        if last.chunked_req is not None:
            aside.add(last.chunked_req)
        running_batch = joined(running_batch, last, aside)
    running_batch.filter_batch()
    # memory also comes back from transfers, which never clear this flag
    running_batch.batch_is_full = False
    return running_batch


def joined(running_batch: Any, batch: Any, aside: set[Any]) -> Any:
    """`batch` without those put aside, in the running batch; in place where that is not empty."""
    if batch is running_batch:
        return running_batch
    batch.filter_batch(reqs_to_exclude=list(aside))
    if batch.is_empty():
        return running_batch
    if running_batch.is_empty():
        return batch
    running_batch.merge_batch(batch)
    return running_batch

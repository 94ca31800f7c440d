"""A model's KV shape from a worker itself, where no catalogue and no config.json has it."""

from kvferry.integrations.sglang.plugin.wire import WorkerRecord
from kvferry.policy.kvshape import KVShape
from kvferry.policy.worker import Worker

GUESSED = "from KV memory"  # how describe.py marks a shape of which it knows no more than bytes per token


def shape_told(worker: Worker, told: WorkerRecord) -> KVShape | None:
    """The shape as its plugin tells it, for a worker whose shape is a guess; None where it is no better.

    K and V heads of one size in every layer are assumed; that is believed only when it gives the very bytes
    per token of the pool that the worker moves (no latent, no window, no other pool).
    """
    if worker.shape.attention != GUESSED:
        return None
    try:
        stage = KVShape(max(1, told.layers), told.kv_heads, told.head_dim)
        if stage.bytes_per_token(told.dtype, worker.layout.tp) != told.bytes_per_token * worker.layout.tp:
            return None
        return KVShape(
            told.layers * told.pp,
            told.kv_heads,
            told.head_dim,
            name=worker.model,
            attention="as its worker tells",
        )
    except ValueError:
        return None

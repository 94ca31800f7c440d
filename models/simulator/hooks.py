"""What an engine tells of its requests."""

from typing import TYPE_CHECKING, Protocol

from kvferry.models.simulator.job import Job

if TYPE_CHECKING:
    from kvferry.models.simulator.engine import Engine


class Hooks(Protocol):
    """All are called at `events.now_s`, may ask the engine for more, and hear nothing of aborted requests."""

    def granted(self, engine: "Engine", job: Job) -> None:
        """Decode role: KV room is set aside; `job.cached_tokens` of its prompt are already there."""

    def chunk(self, engine: "Engine", job: Job, tokens: int) -> None:
        """Prefill role: `tokens` more of the prompt can travel, those found in the cache with the first."""

    def first_token(self, engine: "Engine", job: Job) -> None:
        """The first output token is out."""

    def finished(self, engine: "Engine", job: Job) -> None:
        """The last output token is out; prefill role: the prompt is computed, and held until `release`."""

    def failed(self, engine: "Engine", job: Job) -> None:
        """It does not fit into the KV room, however empty that is."""

"""One request on one simulated engine."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Job:
    """A split request is one job on the prefill and one on the decode engine, with the same `row`.

    `blocks`: the prompt's leading full prefix blocks, `block_tokens` tokens each. Written by engines:
    `cached_tokens` found in the prefix cache, `computed_tokens` of those that had to be there,
    `generated` output tokens (of running ones: see `finish_step`, the engine's decode step at which the
    last token is out; -1: not running), `private_tokens` and `locked` blocks of KV, and when things
    happened. `gone`: aborted.
    """

    row: int
    prompt_tokens: int
    output_tokens: int
    blocks: Sequence[int] = ()
    cached_tokens: int = 0
    computed_tokens: int = 0
    generated: int = 0
    private_tokens: int = 0
    locked: list[int] = field(default_factory=list)
    finish_step: int = -1
    order: int = 0
    admitted: bool = False
    gone: bool = False
    retractions: int = 0
    queued_s: float = math.nan
    prefill_start_s: float = math.nan
    prefill_end_s: float = math.nan
    first_token_s: float = math.nan
    end_s: float = math.nan

    @property
    def to_compute(self) -> int:
        """Tokens still to be computed before the next output token: of the prompt and, after a
        retraction, of the output too."""
        return self.prompt_tokens + self.generated - self.computed_tokens

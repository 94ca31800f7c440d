"""One simulated request on its way through engines."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Job:
    """`blocks`: the prompt's leading full prefix blocks, `block_tokens` tokens each.

    Written by engines: `cached_tokens` found where it prefilled, `computed_tokens` of the prompt (and of
    output to be recomputed after a retraction), `generated` output tokens, and when things happened.
    `finish_step`: the engine's decode step counter at which its last token is out.
    """

    row: int
    prompt_tokens: int
    output_tokens: int
    blocks: Sequence[int] = ()
    block_tokens: int = 512
    cached_tokens: int = 0
    computed_tokens: int = 0
    generated: int = 0
    private_tokens: int = 0
    locked: list[int] = field(default_factory=list)
    finish_step: int = -1
    join_order: int = 0
    retractions: int = 0
    dead: bool = False
    queued_s: float = math.nan
    prefill_start_s: float = math.nan
    prefill_end_s: float = math.nan
    first_token_s: float = math.nan
    end_s: float = math.nan

    @property
    def to_compute(self) -> int:
        """Tokens whose KV must be computed before the next output token."""
        return self.prompt_tokens + max(0, self.generated - 1) - self.computed_tokens

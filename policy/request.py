"""What a client asked for, as far as the decision needs to know it. Never the prompt itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SLO:
    """Service level objective: time to first token, and mean inter-token latency, in seconds."""

    ttft_s: float = 2.0
    itl_s: float = 0.05


@dataclass(frozen=True, slots=True)
class Request:
    """One request at the router's door.

    `prompt_tokens` is exact when the client sent token ids, else estimated from bytes; a batched body
    counts the tokens of all its prompts and says how many sequences it starts. `held_tokens` maps a
    worker id to the prompt tokens whose KV that worker is believed to hold (0 when absent).
    `seed` is the request's own random number: every draw a policy makes is derived from it.
    `tenant` and `family` (prompts that begin alike) are hashes, "" where nobody told.
    """

    id: str
    model: str
    prompt_tokens: int
    max_new_tokens: int = 128
    expected_output_tokens: float = 128.0
    expected_output_tokens_p90: float = 128.0
    sequences: int = 1
    slo: SLO = SLO()
    priority: int = 0
    block_hashes: tuple[int, ...] = ()
    held_tokens: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    tenant: str = ""
    family: str = ""

"""What the health of learning is judged by: of every request that ended, only what is needed for that."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Pair(NamedTuple):
    """A predicted term and what it took, in seconds."""

    p50_s: float
    p90_s: float
    actual_s: float


@dataclass(frozen=True, slots=True)
class Seen:
    """One request. `mode`: split or colocated; `reason`: why; `safe_rule`: that one decided.

    `learned`: a learned version was to correct its predictions, and `fallback` says why it did not.
    `features`: what a model was shown of it, () where nothing was. `terms`: only of a request that ran as it
    was predicted. `inputs`: what should have been told of its outcome; None: nobody told. `missing`: why
    telemetry of its workers is not there. `believed_cached_tokens`: when it was decided.
    """

    mode: str
    reason: str = ""
    safe_rule: bool = False
    learned: bool = False
    fallback: str = ""
    rescued: bool = False
    failed: bool = False
    features: tuple[float, ...] = ()
    terms: Mapping[str, Pair] = field(default_factory=dict)
    inputs: Mapping[str, float | None] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    believed_cached_tokens: int = 0

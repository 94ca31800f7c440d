"""The answer to one request: a plan, why, how likely it was, and what it should cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from kvferry.policy.costs import Costs
from kvferry.policy.deferring import Deferring
from kvferry.policy.plan import Mode, Plan


class Reason(StrEnum):
    """Why a plan was chosen (or, in `reasons_against`, why another was not)."""

    SMALL_PROMPT = "small_prompt"  # moving costs more than this prefill could gain elsewhere
    SHORT_OUTPUT = "short_output"  # too few tokens to decode for a move to pay back
    CONGESTED_PATH = "congested_path"  # other moves share the path
    SLOW_PATH = "slow_path"  # the path itself is too slow for these bytes
    INCOMPATIBLE_LAYOUT = "incompatible_layout"  # the pair (chosen: every pair) cannot exchange KV
    QUEUE_GAIN = "queue_gain"  # less work waits in front
    FASTER_PREFILL = "faster_prefill"
    FASTER_DECODE = "faster_decode"  # its own tokens come faster
    PROTECTS_DECODES = "protects_decodes"  # running decodes are spared
    PROTECTS_QUEUE = "protects_queue"  # the prefill queue behind is spared
    KV_PRESSURE = "kv_pressure"  # the other choice has no room for the KV
    PREFIX_HELD = "prefix_held"  # the chosen worker already holds the prompt's beginning
    UNCERTAIN_GAIN = "uncertain_gain"  # the gain is within its own uncertainty: the safe rule decided
    STALE_LOAD = "stale_load"  # loads too old to trust: the safe rule decided
    EXPLORED = "explored"  # drawn to learn from it: it was expected to cost next to nothing
    ONLY_OPTION = "only_option"  # no plan of the other mode exists
    RULE = "rule"  # a baseline's own rule, named in Decision.policy
    RESCUE = "rescue"  # the first plan failed before its first byte
    LOWER_SCORE = "lower_score"  # against: another plan of the same mode scored better
    WORKER_DOWN = "worker_down"
    PATH_DOWN = "path_down"
    TOO_LARGE = "too_large"  # prompt + output exceed the worker's KV room or context
    EXCLUDED = "excluded"  # already tried for this request
    NO_PARTNER = "no_partner"  # a prefill worker without a decode worker, or the other way round


# The model version where no learned model had its say.
STRUCTURED = "structured"


@dataclass(frozen=True, slots=True)
class Decision(Deferring):
    """`deadline_s` is how long after dispatch the first byte may take before the router rescues. `explored`:
    the plan was drawn to learn from it, and another one would have been chosen."""

    plan: Plan
    reason: Reason
    costs: Costs
    policy: str
    alternatives: Sequence[tuple[Plan, Costs]] = ()
    reasons_against: Mapping[str, str] = field(default_factory=dict)
    propensity_mode: float = 1.0
    propensity_plan: float = 1.0
    model_version: str = STRUCTURED
    safe_rule: str = ""
    deadline_s: float = 30.0
    view_age_s: float = 0.0
    explored: bool = False

    @property
    def mode(self) -> Mode:
        return self.plan.mode


class NoPlanError(Exception):
    """No plan can run this request; `reasons` says why for each plan or worker."""

    def __init__(self, message: str, reasons: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.reasons = dict(reasons or {})

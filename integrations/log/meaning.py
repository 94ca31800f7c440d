"""Reason codes in words. A code that is not here is shown as it is."""

_FOR = {
    "small_prompt": "moving costs more than a prefill this small could gain elsewhere",
    "short_output": "too few tokens to decode for a move to pay back",
    "congested_path": "other moves share the path",
    "slow_path": "the path is too slow for these bytes",
    "incompatible_layout": "these two workers cannot exchange KV",
    "queue_gain": "less work waits in front",
    "faster_prefill": "the prefill itself is faster there",
    "faster_decode": "its own tokens come faster",
    "protects_decodes": "running decodes are spared",
    "protects_queue": "the prefill queue behind is spared",
    "kv_pressure": "no room for the KV",
    "prefix_held": "the worker already holds the beginning of the prompt",
    "uncertain_gain": "the gain is within its own uncertainty, so the safe rule decided",
    "stale_load": "the loads were too old to trust, so the safe rule decided",
    "explored": "drawn to learn what it costs: another plan was expected to be slightly better",
    "only_option": "no plan of the other mode exists",
    "rule": "the policy's own rule",
    "rescue": "the first plan failed before its first byte",
    "lower_score": "another plan of the same mode scored better",
    "worker_down": "the worker does not answer",
    "path_down": "the path does not work",
    "too_large": "prompt and output exceed the worker's room",
    "no_partner": "there is no worker to split with",
    "excluded": "already tried for this request",
}
# the same codes, said of a plan that lost to the chosen one
_AGAINST = {
    "queue_gain": "more work waits in front",
    "faster_prefill": "its prefill is slower",
    "faster_decode": "its tokens come slower",
    "protects_decodes": "it would stall more running decodes",
    "protects_queue": "it would hold up the prefill queue behind",
    "prefix_held": "it holds less of the prompt's beginning",
    "kv_pressure": "it has less room for the KV",
    "lower_score": "another plan of its mode scores better",
    "rule": "the policy's own rule is against it",
    "explored": "expected to be better: the chosen plan was drawn to learn from it",
}


def chosen_for(code: str) -> str:
    """What a reason says of the plan that was chosen; "" for an unknown code."""
    return _FOR.get(code, "")


def against(code: str) -> str:
    """What a reason says of a plan that was not chosen; "" for an unknown code."""
    return _AGAINST.get(code) or _FOR.get(code, "")

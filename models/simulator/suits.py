"""Whether a policy has anything to decide on a cluster."""

import re

from kvferry.models.simulator.spec import ClusterSpec
from kvferry.policy.worker import Role

# Rules that only choose between the modes: without a split all of them are `always_colocated`.
_MODE_RULES = (
    "always_split",
    "coin",
    "length_threshold",
    "llmd_prefix_threshold",
    "dynamo_isl_bounding",
    "dynamo_isl_or_load",
    "aibrix_combined",
    "ppd_table",
    "pinned_conversation",
)
# Rules that are nothing else but `always_split` where no worker does both.
_NEED_COLOCATED = ("always_colocated", *_MODE_RULES[1:])


def can_split(cluster: ClusterSpec) -> bool:
    roles = {engine.role for engine in cluster.engines}
    return Role.PREFILL in roles and Role.DECODE in roles


def can_colocate(cluster: ClusterSpec) -> bool:
    return any(engine.prefills and engine.role is not Role.PREFILL for engine in cluster.engines)


def unsuited(policy: str, cluster: ClusterSpec) -> str:
    """Why `policy` would be another rule under a false name on `cluster`; empty when it is at home."""
    name = policy.partition("(")[0].strip()
    if name in _MODE_RULES and not can_split(cluster):
        return f"{policy} splits nothing on {cluster.name}: it has no prefill and decode workers"
    if name in _NEED_COLOCATED and not can_colocate(cluster):
        return f"{policy} cannot keep a request on one worker of {cluster.name}: none does prefill and decode"
    return ""


def split_names(listed: str) -> list[str]:
    """Policies of a comma-separated list: commas inside parentheses belong to a policy's parameters."""
    return [name.strip() for name in re.split(r",(?![^(]*\))", listed) if name.strip()]

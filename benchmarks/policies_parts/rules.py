"""Which policies are compared, and what of them is tuned."""

from kvferry.policy import base

OWN = "kvferry"
# What stands in front of a worker does not change what these decide.
FIXED = (
    "always_split",
    "always_colocated",
    "coin",
    "length_threshold",
    "llmd_prefix_threshold",
    "dynamo_isl_bounding",
    "random_by_workers",
    "ppd_table",
    "pinned_conversation",
)
TUNED: dict[str, tuple[float, ...]] = {
    "coin": (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8),
    "length_threshold": (512, 1024, 2048, 4096, 8192),
    "llmd_prefix_threshold": (512, 1024, 2048, 4096, 8192),
}
CHUNKS = (256, 512, 1024, 2048)
# Public rules that look at load, but at no ITL objective: one run serves all of these.
LOAD_AWARE = ("least_load", "dynamo_isl_or_load", "aibrix_combined")


def settings(family: str) -> list[str]:
    """All settings of a tuned rule, as `make` takes them."""
    return [f"{family}({value:g})" for value in TUNED[family]]


def family(policy: str) -> str:
    return policy.partition("(")[0]


def untuned() -> list[str]:
    """Everything else that can be served, by its public name; kvferry's own policies apart."""
    return [name for name in base.names() if name not in TUNED and not name.startswith(OWN)]


def is_blind(policy: str) -> bool:
    """Whether a policy decides the same whatever the ITL objective."""
    return family(policy) in FIXED + LOAD_AWARE


def is_fixed(policy: str) -> bool:
    return family(policy) in FIXED

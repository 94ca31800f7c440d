"""Whether a log can say anything of another policy."""

import numpy as np

from kvferry.models.offpolicy.estimators import effective_sample_size
from kvferry.models.offpolicy.logged import Bools, Logged

# Less than this is an anecdote.
MIN_SAMPLE = 50.0
# So much of what the policy would do may be unknown to the log before an estimate is refused.
MAX_UNKNOWN = 0.05
# By how much more often a value may be known of one mode than of the other, beside two standard errors.
MAX_UNEVEN = 0.05


def unknown_share(logged: Logged) -> float:
    """The part of the judged policy's choices that the logging policy never made in the same place."""
    if not len(logged):
        return 0.0
    never = (logged.logging <= 0.0) | np.isnan(logged.predicted).any(axis=2)
    return float(np.where(never, logged.target, 0.0).sum(axis=0).mean())


def refusal(logged: Logged) -> str:
    """Why there can be no estimate, in plain words; "" when there can be one."""
    if not len(logged):
        return "there is no decision to judge it by"
    never = (logged.logging <= 0.0).mean(axis=1)
    for action, mode in enumerate(("colocated", "split")):
        if never[action] == 1.0 and (logged.target[action] > 0.0).any():
            share = float(logged.target[action].mean())
            return (
                f"it would run {share:.0%} of the requests {mode}, which the log never did: let the router "
                "explore (kvferry serve --explore), or log with coin(0.5)"
            )
    unknown = unknown_share(logged)
    if unknown > MAX_UNKNOWN:
        return (
            f"for {unknown:.0%} of the requests it would choose a mode that had no chance when they were "
            "logged: what that would have brought nobody knows, and no more than "
            f"{MAX_UNKNOWN:.0%} can be left to the outcome model"
        )
    size = effective_sample_size(logged.weights)
    if size < MIN_SAMPLE:
        return (
            f"the {len(logged)} decisions say no more of it than {size:.0f} of its own would, and at least "
            f"{MIN_SAMPLE:.0f} are needed: log for longer, or explore more"
        )
    return ""


def unmeasured(logged: Logged, known: Bools) -> str:
    """Why one measure, `known` in these rows, has no estimate; "" when it can have one.

    Rows without a value are left out, which only does no harm where that does not hang on the mode: the
    share of known ones is estimated for each mode as if it had taken all requests (weights 1 / propensity).
    """
    open_to_both = (logged.logging > 0.0).all(axis=0)
    told = []
    for action in (False, True):
        taken = open_to_both & (logged.split == action)
        weights = 1.0 / logged.propensity[taken]
        share = float((weights * known[taken]).sum() / weights.sum()) if taken.any() else 0.0
        told.append((share, effective_sample_size(weights)))
    (colocated, few), (split, fewer) = told
    if few and fewer:
        pooled = (colocated * few + split * fewer) / (few + fewer)
        error = float(np.sqrt(pooled * (1.0 - pooled) * (1.0 / few + 1.0 / fewer)))
        if abs(split - colocated) > MAX_UNEVEN + 2.0 * error:
            return (
                f"it is known of {split:.0%} of what ran split, and of {colocated:.0%} of what ran colocated:"
                " those are not the same requests"
            )
    return refusal(logged.only(known))

"""Whether predictions can be trusted: coverage, how far off they are, and whether that has changed."""

import math
from collections.abc import Iterator

from kvferry.models.health.finding import Finding, State, grade
from kvferry.models.health.snapshot import Snapshot, TermHealth

# Terms that a choice hangs on; the others are shown, not judged: they may be too short to matter.
JUDGED = ("ttft", "itl", "transfer")
ENOUGH = 50
RIGHT = 0.9
TOLERATED, BROKEN = 0.87, 0.75
TOO_WIDE, MANY = 0.99, 300
OFF_WARN, OFF_BAD = math.log(1.5), math.log(2.5)
DRIFT = math.log(1.5)


def of_predictions(snapshot: Snapshot) -> Iterator[Finding]:
    """A finding for the coverage and one for the error of each term in each mode that was measured enough."""
    for name, term in snapshot.terms.items():
        if name.partition("/")[0] in JUDGED and term.window >= ENOUGH:
            what = " of ".join(name.split("/")) + " requests"
            yield _coverage(f"coverage {name}", what, term)
            yield _error(f"error {name}", what, term)


def _coverage(check: str, what: str, term: TermHealth) -> Finding:
    """What chance alone does to a share of so many requests is no finding: two standard errors of it."""
    share = term.coverage or 0.0
    chance = 2.0 * math.sqrt(RIGHT * (1.0 - RIGHT) / term.window)
    says = f"{what} was under its predicted p90 in {share:.0%} of {term.window} cases (90% is right)"
    if share < BROKEN - chance:
        do = "p90 misleads: see its error and what else is wrong here; take a new model back"
        return Finding(check, State.BAD, says, do)
    if share < TOLERATED - chance:
        return Finding(check, State.WARN, says, "retrain on newer logs: kvferry train")
    if share >= TOO_WIDE and term.window >= MANY:
        do = "spreads are too wide, so that more is left to the safe rule than need be: kvferry train"
        return Finding(check, State.WARN, says, do)
    return Finding(check, State.OK, says)


def _error(check: str, what: str, term: TermHealth) -> Finding:
    """As factors. A change that has left predictions right is none."""
    factor, before = math.exp(term.off), math.exp(term.off - term.drift)
    says = f"{what} takes {factor:.2f} times what is predicted (median)"
    state = grade(abs(term.off), OFF_WARN, OFF_BAD)
    if state is State.OK:
        return Finding(check, state, says)
    if abs(term.drift) >= DRIFT:
        says += f"; it was {before:.2f} times before"
        return Finding(check, state, says, "something changed: look for a slow link or worker, else retrain")
    do = "learning does not close this gap: see the samples of its terms and what else is wrong here"
    return Finding(check, state, says, do)

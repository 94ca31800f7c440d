"""From numbers to words: what is wrong with learning, and what to do."""

from kvferry.models.health.finding import Finding, State
from kvferry.models.health.of_decisions import of_decisions
from kvferry.models.health.of_inputs import of_inputs
from kvferry.models.health.of_predictions import of_predictions
from kvferry.models.health.snapshot import Snapshot

ENOUGH = 50


def judge(snapshot: Snapshot) -> list[Finding]:
    """What was found, the worst first; a router that has not seen enough yet says so."""
    found = [*of_decisions(snapshot), *of_predictions(snapshot), *of_inputs(snapshot)]
    if snapshot.window < ENOUGH and not found:
        says = f"{snapshot.window} of {ENOUGH} requests that it takes to say more"
        found = [Finding("requests", State.OK, says)]
    return sorted(found, key=lambda finding: -finding.state.rank)

"""Whether what is learned decides anything: safe rules, fallbacks, rescues, and choices that are none."""

from collections.abc import Iterator, Mapping

from kvferry.models.health.finding import Finding, State, grade
from kvferry.models.health.snapshot import Snapshot

ENOUGH = 50
# More are seldom under way at once without any of them ending.
SILENT = 1000
# The reason of a choice that was none, and whether that can be meant.
FORCED: Mapping[str, tuple[State, str]] = {
    "path_down": (State.BAD, "see open_breakers in /kvferry/links, then the transport's logs"),
    "worker_down": (State.BAD, "see why_down in /kvferry/workers"),
    "no_partner": (State.WARN, "start the missing prefill or decode worker, or give its URL"),
    "incompatible_layout": (State.WARN, "start both with the same page size, KV dtype and transport"),
    "kv_pressure": (State.WARN, "the workers are full: add some, or shorten contexts"),
}


def of_decisions(snapshot: Snapshot) -> Iterator[Finding]:
    """Shares of the window; nothing is said of fewer than ENOUGH requests."""
    if snapshot.decided >= ENOUGH and not snapshot.ended:
        says = f"{snapshot.decided} requests were decided, and no outcome has come: nothing is learned"
        yield Finding("outcomes", State.BAD, says, "see whether answers end at all, and this router's log")
    elif snapshot.silent >= SILENT:
        says = f"{snapshot.silent} requests were decided since the last outcome came: learning has stopped"
        yield Finding("outcomes", State.BAD, says, "see whether answers end at all, and this router's log")
    if snapshot.window < ENOUGH:
        return
    yield from _safe_rule(snapshot)
    yield from _fallbacks(snapshot)
    yield from _forced(snapshot)
    rescued, failed = snapshot.share(snapshot.rescued), snapshot.share(snapshot.failed)
    says = f"{rescued:.1%} of requests were rescued: their first plan gave no byte in time"
    do = "see kvferry logs tail for the plans that were given up, and take those workers or links out"
    yield _graded("rescues", grade(rescued, 0.05, 0.2), says, do)
    says = f"{failed:.1%} of requests failed"
    yield _graded("failures", grade(failed, 0.05, 0.2), says, "see kvferry logs tail for the errors")


def _safe_rule(snapshot: Snapshot) -> Iterator[Finding]:
    stale = snapshot.share(snapshot.reasons.get("stale_load", 0))
    says = f"{stale:.1%} of decisions were left to the safe rule because loads were too old"
    do = "workers answer /v1/loads too late or never: see load_age_s in /kvferry/workers"
    yield _graded("stale loads", grade(stale, 0.02, 0.2), says, do)
    share = snapshot.share(snapshot.safe)
    says = f"{share:.1%} of decisions were left to a safe rule"
    do = "right on an idle cluster; under load predictions are too uncertain: see coverage and samples"
    yield _graded("safe rule", grade(share, 0.9, 2.0), says, do)


def _fallbacks(snapshot: Snapshot) -> Iterator[Finding]:
    """Of decisions that a learned version was to correct."""
    if snapshot.learned < ENOUGH:
        return
    count = sum(snapshot.fallbacks.values())
    share = count / snapshot.learned
    says = f"{snapshot.version} did not correct {share:.1%} of {snapshot.learned} predictions"
    if count:
        most = max(snapshot.fallbacks, key=lambda why: snapshot.fallbacks[why])
        says += f"; most often: {most}"
    broken = sum(times for why, times in snapshot.fallbacks.items() if "failed" in why)
    state = State.BAD if broken > 0.01 * snapshot.learned else grade(share, 0.2, 0.9)
    do = "it was not trained on such requests: kvferry train on newer logs, or kvferry models rollback"
    yield _graded("fallbacks", state, says, do)


def _forced(snapshot: Snapshot) -> Iterator[Finding]:
    for reason, (state, do) in FORCED.items():
        share = snapshot.share(snapshot.reasons.get(reason, 0))
        if share >= 0.5:
            says = f"{share:.0%} of requests had no choice ({reason}): one of the two modes is as good as off"
            yield Finding("choice", state, says, do)
            return
    yield Finding("choice", State.OK, f"{snapshot.share(snapshot.split):.0%} of requests were split")


def _graded(check: str, state: State, says: str, do: str) -> Finding:
    return Finding(check, state, says, do if state is not State.OK else "")

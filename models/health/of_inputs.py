"""Whether what learning feeds on arrives: telemetry, measured stages, loads, and features that live."""

from collections.abc import Iterator, Mapping

from kvferry.models.health.finding import Finding, State, grade
from kvferry.models.health.snapshot import InputHealth, Snapshot

ENOUGH = 50
MANY = 200
LONG_TOKENS = 128
# Of an outcome: what is lost without it, and what helps. Without the first ones there is nothing to learn.
VITAL: Mapping[str, tuple[str, str]] = {
    "ttft_s": ("no prediction can be checked", "let clients stream, or install the plugin in the workers"),
    "output_tokens": ("lengths of answers stay a guess", "see whether answers carry usage"),
}
USEFUL: Mapping[str, tuple[str, str]] = {
    "itl_s": ("gaps between tokens are not learned", "no client streams"),
    "prompt_tokens": ("text prompts' lengths stay estimates", "see whether answers carry usage"),
    "cached_tokens": ("hits in the prefix cache stay a guess", "start workers with --enable-cache-report"),
}
MEASURED = ("queue_s", "prefill_s", "transfer_s", "alloc_s", "decode_s", "moved_bytes", "descriptors")
AGES = ("pre_load_age_s", "dec_load_age_s")
OLD_S = 5.0
# Features that cannot stay the same where requests come and go, and what it means when they do.
ALIVE: Mapping[str, str] = {
    "pre_load_age_s": "the clock of prefill workers' loads stands still",
    "dec_load_age_s": "the clock of decode workers' loads stands still",
    "pre_arrivals_per_s": "arrivals are not counted",
    "dec_kv_use": "how full the KV caches are does not arrive: see unknown in /kvferry/workers",
}


def of_inputs(snapshot: Snapshot) -> Iterator[Finding]:
    """A finding for each group of inputs that was asked for often enough."""
    if snapshot.window < ENOUGH:
        return
    yield from _samples(snapshot)
    yield from _telemetry(snapshot)
    yield from _outcomes(snapshot)
    yield from _stages(snapshot)
    yield from _cache(snapshot)
    yield from _features(snapshot)


def _samples(snapshot: Snapshot) -> Iterator[Finding]:
    """Whether the online models are fed at all."""
    counts = snapshot.evidence
    if not counts:
        return
    says = "samples learned from: " + ", ".join(f"{name} {count}" for name, count in counts.items() if count)
    dead = [name for name, asked in _asked(snapshot).items() if asked >= ENOUGH and not counts.get(name)]
    if dead:
        says = f"not one sample was learned from: {', '.join(dead)}"
        yield Finding("samples", State.BAD, says, "their outcomes do not arrive: see the dead inputs")
    else:
        yield Finding("samples", State.OK, says)


def _asked(snapshot: Snapshot) -> dict[str, int]:
    """How many of the window's requests should have taught each model."""
    ended = snapshot.window - snapshot.rescued - snapshot.failed
    moves = snapshot.inputs.get("moved_bytes")
    return {"ttft": ended, "transfer": moves.arrived if moves else 0}


def _telemetry(snapshot: Snapshot) -> Iterator[Finding]:
    """A plugin that says that it sends, and is not heard, is what nobody would notice otherwise."""
    lost = snapshot.share(sum(snapshot.missing.get(why, 0) for why in ("unheard", "no_record")))
    if lost > 0.05:
        says = f"telemetry was lost of {min(1.0, lost):.0%} of requests, though the workers' plugins send it"
        do = "give workers and router the same Redis (KVFERRY_REDIS), and see kvferry worker check"
        yield Finding("telemetry", grade(lost, 0.05, 0.5), says, do)
        return
    silent = snapshot.share(sum(snapshot.missing.get(why, 0) for why in ("no_plugin", "telemetry_off")))
    if silent > 0.5:
        says = "most workers tell no telemetry: terms are learned from answers alone"
        yield Finding("telemetry", State.WARN, says, "install kvferry's plugin in the workers")
        return
    yield Finding("telemetry", State.OK, "the workers' telemetry arrives")


def _outcomes(snapshot: Snapshot) -> Iterator[Finding]:
    for table, state in ((VITAL, State.BAD), (USEFUL, State.WARN)):
        for name, (lost, do) in table.items():
            told = snapshot.inputs.get(name)
            if told is None or told.asked < ENOUGH:
                continue
            if told.arrived:
                yield Finding(name, State.OK, f"{name} came with {_share(told)} of {told.asked} answers")
            else:
                says = f"{name} came with none of {told.asked} answers: {lost}"
                yield Finding(name, state, says, do)


def _stages(snapshot: Snapshot) -> Iterator[Finding]:
    """Asked for where all telemetry of a request came: then none of them may be missing for ever."""
    asked = {name: told for name in MEASURED if (told := snapshot.inputs.get(name)) and told.asked >= ENOUGH}
    dead = [name for name, told in asked.items() if not told.arrived]
    if dead:
        says = f"never measured, though telemetry comes: {', '.join(dead)}; those terms learn nothing"
        yield Finding("stages", State.BAD, says, "see kvferry worker check on both workers of a split")
    elif asked:
        yield Finding("stages", State.OK, "all stages are measured")


def _cache(snapshot: Snapshot) -> Iterator[Finding]:
    told = snapshot.inputs.get("cached_tokens")
    # shorter hits are less than a block, by which prefixes are followed
    if told is None or told.arrived < ENOUGH or told.total < LONG_TOKENS * told.arrived:
        return
    ratio = snapshot.believed_cached_tokens / told.total
    says = f"{ratio:.2f} cached tokens were believed for each one that workers found"
    do = "prefixes are not followed: switch KV events on, or see prefix in /kvferry/workers"
    state = State.BAD if ratio < 0.05 else State.WARN if not 0.5 <= ratio <= 2.0 else State.OK
    yield Finding("prefix cache", state, says, "" if state is State.OK else do)


def _features(snapshot: Snapshot) -> Iterator[Finding]:
    features = snapshot.features
    shown = max((one.arrived for one in features.values()), default=0)
    if not shown:
        says = "decisions carry no features: there is nothing to train a model on"
        yield Finding("features", State.WARN, says, "only --policy kvferry, which predicts, logs them")
        return
    if shown < MANY:
        return
    old = {name: features[name].low for name in AGES if name in features and features[name].low > OLD_S}
    if old:
        says = f"loads were never younger than {min(old.values()):.0f} s"
        do = "/v1/loads does not arrive: see load_age_s in /kvferry/workers"
        yield Finding("features", State.BAD, says, do)
    constant = [name for name, told in features.items() if told.constant]
    for name, means in ALIVE.items():
        if name in constant and name not in old:
            value = features[name].low
            says = f"feature {name} was {value:.4g} in all of {shown} decisions: {means}"
            yield Finding("features", State.WARN, says, "look at what tells it; then kvferry train")
    says = "all features vary"
    if constant:
        says = f"nothing can be learned from what did not vary: {', '.join(constant)}"
    yield Finding("constant features", State.OK, says)


def _share(told: InputHealth) -> str:
    return f"{told.arrived / told.asked:.0%}"

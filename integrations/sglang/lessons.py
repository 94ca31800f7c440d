"""What the router learns from requests that ended, and hands to the next decisions."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kvferry.integrations.log.record import NEVER_S, DecisionRecord, Outcome, Term
from kvferry.models.calibration import Bias, Calibration
from kvferry.models.output_lengths import OutputLengths
from kvferry.models.terms.hidden import NOISE_S
from kvferry.models.terms.learner import Learner, Move
from kvferry.models.terms.way import Way
from kvferry.policy.costs import Costs
from kvferry.policy.features import EPSILON_S, FEATURE_SET, FEATURES
from kvferry.policy.worker import Speed, Worker

# Without a measured move, what a first token waited beyond the other predicted terms is taken for it: those
# are off by about so much of it.
BLUR = 0.3
# A prompt that waited for less than this much of its own prefill is taken to have had that to itself.
ALONE = 0.1


@dataclass(frozen=True, slots=True)
class _Note:
    """Of a request in flight: what its decision was made with. `learn_length`: its answer ends by itself.
    `more_per_byte`: descriptors that its pages were expected to lie apart by."""

    bias: Bias
    learn_length: bool
    way: Way | None
    more_per_byte: float


@dataclass(slots=True)
class Lessons:
    """`clock` as everywhere: monotonic. `worker_of`: a known worker, and its speed by its counters alone."""

    clock: Callable[[], float]
    worker_of: Callable[[str], tuple[Worker, Speed] | None] = lambda name: None
    learner: Learner = field(init=False)
    lengths: OutputLengths = field(default_factory=OutputLengths)
    _notes: dict[str, _Note] = field(default_factory=dict)

    def __post_init__(self) -> None:
        clock, unix_s = self.clock, time.time() - self.clock()
        self.learner = Learner(lambda: unix_s + clock())

    @property
    def waiting(self) -> int:
        """Requests that were decided and not yet told of."""
        return len(self._notes)

    def calibration(self, model: str) -> Calibration:
        return self.learner.calibration(model)

    def decided(self, record: DecisionRecord, way: Way | None, *, ends_itself: bool) -> None:
        """A request's first decision. `told` must be called for every one."""
        bias = self.calibration(record.request.model).bias(split=record.chosen.mode == "split")
        more = 0.0 if way is None else self.learner.more_per_byte(way.link, record.chosen.relation)
        self._notes[record.id] = _Note(bias, ends_itself, way, more)

    def sent(self, attempt: str, way: Way, costs: Costs) -> None:
        """An attempt goes out over a link; by when its KV should be on its way is known."""
        due_s = self.learner.clock() + costs.queue_s.p90 + costs.prefill_s.p90 + costs.admission_s.p90
        self.learner.sent(attempt, way, costs.relation, costs.moved_bytes, costs.descriptors, due_s)

    def arrived(self, attempt: str) -> None:
        """Its KV is there, or nobody waits for it any more."""
        self.learner.arrived(attempt)

    def lost(self, attempt: str) -> None:
        """It was given up; if its KV was not there by then, that tells of the link."""
        self.learner.lost(attempt)

    def told(self, record: DecisionRecord, outcome: Outcome) -> None:
        """What came of a request, with the workers' telemetry if there is any."""
        note = self._notes.pop(record.id, None)
        if note is None or outcome.status not in ("ok", "cancelled"):
            return
        request, terms = record.request, record.terms
        if note.learn_length and outcome.output_tokens:
            tokens = outcome.output_tokens / max(1, request.sequences)
            cut = outcome.status != "ok" or tokens >= request.max_new_tokens
            tenant, family = request.tenant, request.family
            self.lengths.observe(request.model, tokens, cut=cut, tenant=tenant, family=family)
        if outcome.status != "ok" or outcome.rescued_from:
            return
        split = record.chosen.mode == "split"
        self.learner.answered(
            request.model,
            split=split,
            ttft_s=(_known(record.structured_ttft_s, terms.ttft_s), terms.ttft_s.p90, outcome.ttft_s),
            itl_s=(_known(record.structured_itl_s, terms.itl_s), terms.itl_s.p90, outcome.itl_s),
            queue_s=(_structured_queue_s(record), _waited_s(outcome)),
            included=note.bias,
        )
        self._prefilled(record, outcome)
        if note.way is not None:
            self._moved(note.way, record, outcome)
            self._scattered(note.way, note.more_per_byte, record, outcome)

    def _moved(self, way: Way, record: DecisionRecord, outcome: Outcome) -> None:
        """What the workers say was waited for, or the library's own time, or what is left of the TTFT."""
        terms, stages, chosen = record.terms, outcome.stages, record.chosen
        moved_bytes = _first(outcome.moved_bytes, chosen.moved_bytes)
        descriptors = _first(outcome.descriptors, chosen.descriptors)
        if stages.repack_s is not None and chosen.moved_bytes > 0:
            assumed = terms.repack_s.p50 / chosen.moved_bytes
            self.learner.repacked(chosen.relation, assumed, moved_bytes, stages.repack_s)
        busy_s = outcome.moved.busy_s if outcome.moved is not None and outcome.moved.busy_s > 0.0 else None
        seen_s, noise_s, guessed = stages.transfer_s, NOISE_S, False
        if seen_s is None and busy_s is None and outcome.ttft_s is not None:
            others_s = terms.queue_s.p50 + terms.prefill_s.p50 + terms.admission_s.p50 + terms.repack_s.p50
            seen_s, noise_s = max(0.0, outcome.ttft_s - others_s), max(NOISE_S, BLUR * outcome.ttft_s)
            guessed = True
        if stages.transfer_s is not None:
            said, took_s = terms.transfer_s, stages.transfer_s
            if said.p99 > 0.0:  # a learned model's word
                self.learner.spreads(record.request.model).transfer.observe(took_s, said.p90)
            else:
                self.learner.travelled(way.link, chosen.relation, said.p90, took_s)
        prefill_s = terms.prefill_s.p50 if stages.prefill_s is None else stages.prefill_s
        self.learner.moved(
            Move(way, chosen.relation, moved_bytes, descriptors, busy_s, seen_s, prefill_s, noise_s, guessed)
        )

    def _scattered(self, way: Way, expected: float, record: DecisionRecord, outcome: Outcome) -> None:
        """Descriptors beyond those that were predicted for one piece."""
        chosen = record.chosen
        if way.link.merges_runs and outcome.descriptors and outcome.moved_bytes:
            whole = chosen.descriptors - expected * chosen.moved_bytes
            self.learner.scattered(
                way.link, chosen.relation, outcome.descriptors - whole, outcome.moved_bytes
            )

    def _prefilled(self, record: DecisionRecord, outcome: Outcome) -> None:
        """Of a prompt that shared its steps with no other one, nor with decodes."""
        took_s, prompt_tokens = outcome.stages.prefill_s, outcome.prompt_tokens
        known = self.worker_of(record.chosen.prefill)
        if took_s is None or not prompt_tokens or known is None or record.request.sequences > 1:
            return
        worker, counted = known
        found = next((outcome.found[role] for role in _PREFILLING if role in outcome.found), None)
        if found is not None:
            alone = not (found.get("waiting") or found.get("local"))
            alone = alone and not (worker.mixes_chunks and found.get("running"))
        elif outcome.found or worker.can_colocate:  # told nothing of what ran there
            return
        else:
            alone = _first(outcome.stages.queue_s, record.terms.queue_s.p50) <= ALONE * took_s
        if alone:
            cached_tokens = _first(outcome.cached_tokens, record.request.cached_tokens)
            new_tokens = max(1.0, prompt_tokens - cached_tokens)
            self.learner.prefilled(worker, counted, new_tokens, cached_tokens, took_s)


_PREFILLING = ("prefill", "colocated", "local")


def _known(structured_s: float, term: Term) -> float | None:
    """Of records of before there were models, the prediction itself."""
    predicted_s = structured_s or term.p50
    return predicted_s if 0.0 < predicted_s < NEVER_S else None


def _structured_queue_s(record: DecisionRecord) -> float | None:
    """As it was predicted before a learned model, if there was one, corrected it."""
    if record.feature_set != FEATURE_SET or len(record.features) != len(FEATURES):
        return None
    return max(0.0, math.exp(record.features[FEATURES.index("log_queue_s")]) - EPSILON_S)


def _waited_s(outcome: Outcome) -> float | None:
    """Until the prefill started, where the workers tell."""
    stages = outcome.stages
    if stages.queue_s is None:
        return None
    return (stages.ingress_s or 0.0) + (stages.bootstrap_s or 0.0) + stages.queue_s


def _first(*values: float | None) -> float:
    return next((float(value) for value in values if value is not None), 0.0)

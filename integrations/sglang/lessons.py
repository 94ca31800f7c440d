"""What the router learns from requests that ended, and hands to the next decisions."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvferry.integrations.log.record import NEVER_S, DecisionRecord, Outcome, Term
from kvferry.models.calibration import Bias, Calibration
from kvferry.models.link_speed import NOISE_S, LinkSpeeds, Path, nearest_s
from kvferry.models.output_lengths import OutputLengths
from kvferry.policy.costs import Costs
from kvferry.policy.link import Link

# Without a measured move, what a first token waited beyond the other predicted terms is taken for it: those
# are off by about so much of it.
BLUR = 0.3


@dataclass(frozen=True, slots=True)
class Way:
    """A split's move: over which link, among how many others at dispatch, behind what prefill."""

    link: Link
    others: int
    new_tokens: float
    chunk_tokens: float
    first_contact: bool = False

    @property
    def path(self) -> Path:
        return path_of(self.link)

    def expected_s(self, moved_bytes: float, descriptors: float) -> float:
        """Seconds on the wire by the catalogue, contention included, latency and meeting not."""
        link = self.link
        moving_s = moved_bytes / max(link.beta_bytes_per_s, 1.0) + link.gamma_s_per_descriptor * descriptors
        return moving_s * (1 + self.others)

    def around_s(self, moved_bytes: float) -> float:
        """Seconds of a move that do not depend on the link's speed."""
        link = self.link
        met_s = link.first_contact_s + link.registration_s_per_byte * moved_bytes
        return link.alpha_s + link.handoff_s + (met_s if self.first_contact else 0.0)


@dataclass(frozen=True, slots=True)
class _Note:
    """Of a request in flight: what its decision was made with. `learn_length`: its answer ends by itself."""

    bias: Bias
    learn_length: bool
    way: Way | None


@dataclass(slots=True)
class Lessons:
    """`clock` as everywhere: monotonic. Calibration is per model."""

    clock: Callable[[], float]
    speeds: LinkSpeeds = field(default_factory=LinkSpeeds)
    lengths: OutputLengths = field(default_factory=OutputLengths)
    _calibrations: dict[str, Calibration] = field(default_factory=dict)
    _notes: dict[str, _Note] = field(default_factory=dict)

    @property
    def waiting(self) -> int:
        """Requests that were decided and not yet told of."""
        return len(self._notes)

    def calibration(self, model: str) -> Calibration:
        return self._calibrations.setdefault(model, Calibration())

    def slowness(self, paths: Sequence[Path]) -> list[float]:
        """Of links, as `State.link_slowness` has it."""
        return self.speeds.slowness(paths, self.clock())

    def decided(self, record: DecisionRecord, way: Way | None, *, ends_itself: bool) -> None:
        """A request's first decision. `told` must be called for every one."""
        bias = self.calibration(record.request.model).bias(split=record.chosen.mode == "split")
        self._notes[record.id] = _Note(bias, ends_itself, way)

    def sent(self, attempt: str, way: Way, costs: Costs) -> None:
        """An attempt goes out over a link; by when its KV should be there is known."""
        before_s = costs.queue_s.p90 + costs.prefill_s.p90 + costs.admission_s.p90
        due_s = self.clock() + before_s + way.around_s(costs.moved_bytes)
        self.speeds.begin(attempt, way.path, due_s, way.expected_s(costs.moved_bytes, costs.descriptors))

    def arrived(self, attempt: str) -> None:
        """Its KV is there, or nobody waits for it any more."""
        self.speeds.end(attempt)

    def told(self, record: DecisionRecord, outcome: Outcome) -> None:
        """What came of a request, with the workers' telemetry if there is any."""
        note = self._notes.pop(record.id, None)
        if note is None or outcome.status not in ("ok", "cancelled"):
            return
        request = record.request
        if note.learn_length and outcome.output_tokens:
            tokens = outcome.output_tokens / max(1, request.sequences)
            cut = outcome.status != "ok" or tokens >= request.max_new_tokens
            tenant, family = request.tenant, request.family
            self.lengths.observe(request.model, tokens, cut=cut, tenant=tenant, family=family)
        if outcome.status != "ok" or outcome.rescued_from:
            return
        self.calibration(request.model).observe(
            split=record.chosen.mode == "split",
            predicted_ttft_s=_known(record.terms.ttft_s),
            ttft_s=outcome.ttft_s,
            predicted_itl_s=_known(record.terms.itl_s),
            itl_s=outcome.itl_s,
            included=note.bias,
        )
        if note.way is not None:
            self._moved(note.way, record, outcome)

    def _moved(self, way: Way, record: DecisionRecord, outcome: Outcome) -> None:
        """The library's own time where a plugin tells it, else what was seen of the move."""
        moved_bytes = _first(outcome.moved_bytes, record.chosen.moved_bytes)
        expected_s = way.expected_s(moved_bytes, _first(outcome.descriptors, record.chosen.descriptors))
        if not 0.0 < expected_s < math.inf:
            return
        if outcome.moved is not None and outcome.moved.busy_s > 0.0:
            self.speeds.observe(way.path, expected_s, outcome.moved.busy_s, self.clock())
            return
        terms, stages, noise_s = record.terms, outcome.stages, NOISE_S
        seen_s = stages.transfer_s
        if seen_s is None:
            if outcome.ttft_s is None:
                return
            others_s = terms.queue_s.p50 + terms.prefill_s.p50 + terms.admission_s.p50 + terms.repack_s.p50
            seen_s, noise_s = outcome.ttft_s - others_s, max(NOISE_S, BLUR * outcome.ttft_s)
        took_s = nearest_s(
            expected_s,
            seen_s - way.around_s(moved_bytes),
            terms.prefill_s.p50 if stages.prefill_s is None else stages.prefill_s,
            way.new_tokens,
            way.chunk_tokens,
            noise_s,
        )
        self.speeds.observe(way.path, expected_s, took_s, self.clock())


def path_of(link: Link) -> Path:
    """Moves share a path when they share both hosts and the transport."""
    return Path(link.src_host, link.dst_host, link.transport)


def _known(term: Term) -> float | None:
    return term.p50 if 0.0 < term.p50 < NEVER_S else None


def _first(*values: float | None) -> float:
    return next((float(value) for value in values if value is not None), 0.0)

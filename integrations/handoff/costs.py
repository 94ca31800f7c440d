"""What a path costs, from what handoffs over it took: the numbers by which the form of the next is chosen."""

from collections import deque
from dataclasses import replace

import numpy as np

from kvferry.integrations.handoff.record import HandoffRecord
from kvferry.models.moves.choose import Form, PathCost
from kvferry.policy.candidates import Floats

__all__ = ["STARTS", "LearnedCost", "start_of"]

_GATHER, _SCATTER, _CONVERT = 0.10e-9, 0.16e-9, 1.0e-9
# Until something was moved. Of the path: facts on transports (CPU memory, TCP and CMA); around it: 64 MiB
# of 1 KiB blocks by torch on one core.
STARTS = {
    "local": PathCost(40e-6, 0.10e-9, 0.5e-6, _GATHER, _SCATTER, 0.4e-3, _CONVERT),
    "nixl": PathCost(20e-6, 0.09e-9, 3.7e-6, _GATHER, _SCATTER, 0.4e-3, _CONVERT),
    "mooncake": PathCost(51e-6, 0.58e-9, 24.7e-6, _GATHER, _SCATTER, 0.4e-3, _CONVERT),
}
# One move counts a twentieth of what went before, so that a path that changed is believed after some tens.
FORGET = 0.95
FIRST_SHARE = 0.5
SHARE = 0.1
LEAST = 0.02
MOST_UNTAUGHT = 64
# How much the start counts against a move, and how far one move is from what is believed at most.
PULL = 0.02
MOST_CHANGE = 4.0


def start_of(transport: str) -> PathCost:
    """The costs to begin with; of a transport that has none, those of Mooncake, which favour staging."""
    return STARTS.get(transport, STARTS["mooncake"])


class LearnedCost:
    """One path's costs: alpha, beta and gamma by least squares that forget, pulled to where it
    started; the time around by exponential means. Not thread-safe."""

    def __init__(self, start: PathCost) -> None:
        self._start = start
        self._prior = np.array([start.alpha_s, start.s_per_byte, start.s_per_descriptor])
        # In units of the prior: what was not told apart stays in its proportions.
        self._weights = np.eye(3) * PULL
        self._sums = np.full(3, PULL)
        self._around = np.array([start.gather_s_per_byte, start.convert_s_per_byte, start.scatter_s_per_byte])
        self._seen = np.zeros(3, dtype=bool)
        self._shown: float | None = None
        self._untaught: deque[HandoffRecord] = deque(maxlen=MOST_UNTAUGHT)

    def learn(self, record: HandoffRecord) -> None:
        """Keep it for when the cost is next asked for: who ends a move does not wait for this."""
        self._untaught.append(record)

    def _learn(self, record: HandoffRecord) -> None:
        """Moves that shared the transport say nothing of the path alone, gated and verified ones nothing of
        how much of the gathering and scattering the wire hides."""
        if record.batches and record.concurrency == 1:
            sample = record.sample()
            row = self._prior * (1.0, sample.moved_bytes, sample.descriptors)
            expected_s = float(row.sum())  # errors are relative to this: seconds would let large moves decide
            row /= expected_s
            believed = float(row @ self._scale)
            seen = min(MOST_CHANGE * believed, max(believed / MOST_CHANGE, sample.total_s / expected_s))
            self._weights = FORGET * self._weights + np.outer(row, row) + (1.0 - FORGET) * PULL * np.eye(3)
            self._sums = FORGET * self._sums + row * seen + (1.0 - FORGET) * PULL
        if record.form is Form.STAGED and record.batches:
            self._learn_around(record)

    def _learn_around(self, record: HandoffRecord) -> None:
        largest = max(record.src_bytes, record.dst_bytes)
        converted = record.src_bytes != record.dst_bytes
        took_s = np.array([record.gather_s, record.convert_s if converted else 0.0, record.scatter_s])
        per_byte = took_s / (record.src_bytes, largest, record.dst_bytes)
        given = per_byte > 0.0
        share = np.where(self._seen, SHARE, FIRST_SHARE)
        self._around = np.where(given, (1.0 - share) * self._around + share * per_byte, self._around)
        self._seen |= given
        work_s = float(took_s.sum())
        if record.gated or record.verified or record.concurrency > 1 or work_s <= 0.0:
            return
        shown_s = record.total_s - record.transport_s - record.batches * self._start.acknowledgement_s
        shown = min(2.0, max(LEAST, shown_s / work_s))
        self._shown = shown if self._shown is None else (1.0 - SHARE) * self._shown + SHARE * shown

    @property
    def _scale(self) -> Floats:
        return np.maximum(np.linalg.solve(self._weights, self._sums), LEAST)

    @property
    def cost(self) -> PathCost:
        """As believed now. The time around is what of it lengthens a staged move: part passes while other
        bytes are on the wire."""
        while self._untaught:
            self._learn(self._untaught.popleft())
        alpha_s, s_per_byte, s_per_descriptor = (float(each) for each in self._prior * self._scale)
        shown = 1.0 if self._shown is None else self._shown
        gather, convert, scatter = (float(each) * shown for each in self._around)
        return replace(
            self._start,
            alpha_s=alpha_s,
            s_per_byte=s_per_byte,
            s_per_descriptor=s_per_descriptor,
            gather_s_per_byte=gather,
            convert_s_per_byte=convert,
            scatter_s_per_byte=scatter,
        )

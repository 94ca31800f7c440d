"""What of a move the prefill hides, whose chunks travel while later ones are computed."""

import numpy as np

from kvferry.policy.candidates import Floats, Ints
from kvferry.policy.cluster import Cluster
from kvferry.policy.standing import Standing


def hidden_by(worker: Standing, cluster: Cluster, pre: Ints) -> Floats:
    """[4, P] of plans that prefill on the workers `pre` [P]: seconds that prefill goes on after its first and
    after its last but one chunk, and the parts of the move that are still to come when its last and its last
    but one chunk are done."""
    rows = np.empty((4, len(worker.chunk)))
    compute = worker.prefill_s - cluster.state.prefill_base_s
    np.multiply(compute, 1.0 - worker.chunk, out=rows[0])
    np.multiply(compute, worker.last, out=rows[1])
    rows[2] = worker.last
    np.minimum(worker.chunk + worker.last, 1.0, out=rows[3])
    return rows.take(pre, axis=1)


def visible_s(wire_s: Floats, hidden: Floats) -> Floats:
    """Seconds by which moves of `wire_s` [P] outlast the prefill; `hidden` as of `hidden_by`.

    The chunk whose data arrives last is waited for: that is the first, the last or the one before it, for
    between full chunks both compute and wire grow linearly. The prefill's base is spent before any chunk.
    """
    after_first, after_late, last, late = hidden
    visible: Floats = wire_s - after_first
    np.maximum(visible, wire_s * last, out=visible)
    late_end = wire_s * late
    late_end -= after_late
    np.maximum(visible, late_end, out=visible)
    return visible

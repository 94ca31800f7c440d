"""What a move would take by its link's own figures, whatever moves before it have shown."""

from kvferry.policy.cluster import Cluster
from kvferry.policy.overlap import hidden_by, visible_s
from kvferry.policy.predict import Prediction


def catalogue_transfer_s(cluster: Cluster, prediction: Prediction, row: int) -> float:
    """Seconds of the transfer of plan `row`, 0 of a colocated one.

    transfer = alpha + handoff + meeting + what the prefill does not hide of
    (bytes / beta + gamma * descriptors) * (1 + moves).  All figures are those of the link's entry in the
    catalogue, or of its probe: no learned slowness, factor or offset, and the descriptors are those of a
    prompt whose pages are neighbours. How long the prefill takes is as predicted.
    """
    table = cluster.candidates
    if not table.split[row]:
        return 0.0
    worker, at = prediction.standing, slice(row, row + 1)
    pre, moved_bytes = table.pre[at], prediction.moved_bytes[at]
    descriptors = table.merged_descriptors[at] * worker.chunks.take(pre)
    descriptors += table.descriptors_per_token[at] * worker.moved_tokens.take(table.dec[at])
    wire = moved_bytes * table.s_per_byte[at] + table.gamma_s[at] * descriptors
    wire *= 1.0 + cluster.state.moves.take(table.link_index[at])
    seconds = visible_s(wire, hidden_by(worker, cluster, pre))
    seconds += table.alpha_s[at] + table.meeting_s[at] + table.meeting_s_per_byte[at] * moved_bytes
    return float(seconds[0])

"""What handoffs that are done teach of their links."""

from kvferry.integrations.handoff.record import HandoffRecord
from kvferry.models.terms.learner import Learner, Move
from kvferry.models.terms.way import Way
from kvferry.policy.link import Link

__all__ = ["learn", "move_of"]


def move_of(record: HandoffRecord, link: Link) -> Move | None:
    """A handoff as a link's learner has moves: `busy_s` of bytes and descriptors, of all that share the path.

        busy_s = transport_s - batches * alpha

    Gathering, scattering and waiting for layers are no part of the link. None where nothing moved, and where
    the link is of other hosts or another transport.
    """
    if (link.src_host, link.dst_host, link.transport) != (record.src, record.dst, record.transport):
        return None
    if not record.batches or not record.moved_bytes:
        return None
    way = Way(
        link,
        others=float(record.concurrency - 1),
        new_tokens=float(record.tokens),
        chunk_tokens=float(record.tokens),
        first_contact=record.first_contact_s > 0.0,
    )
    busy_s = max(0.0, record.transport_s - record.batches * link.alpha_s)
    return Move(way, record.relation, float(record.moved_bytes), float(record.descriptors), busy_s=busy_s)


def learn(learner: Learner, link: Link, record: HandoffRecord) -> bool:
    """Feed a handoff to what is believed of its link; False where it says nothing (`move_of`)."""
    move = move_of(record, link)
    if move is None:
        return False
    learner.moved(move)
    return True

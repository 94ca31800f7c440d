"""What a departure adds up while it is under way."""

from dataclasses import dataclass

from kvferry.integrations.handoff.messages import Scattered
from kvferry.integrations.transports.base import Measurement

__all__ = ["Tally"]


@dataclass(slots=True)
class Tally:
    """Sums of what batches and slots took; the meaning of each is in `HandoffRecord`."""

    moved_bytes: int = 0
    descriptors: int = 0
    batches: int = 0
    concurrency: int = 1
    registration_s: float = 0.0
    first_contact_s: float = 0.0
    post_s: float = 0.0
    wire_s: float = 0.0
    transport_s: float = 0.0
    gather_s: float = 0.0
    convert_s: float = 0.0
    scatter_s: float = 0.0
    verify_s: float = 0.0

    def moved(self, measured: Measurement) -> None:
        self.moved_bytes += measured.moved_bytes
        self.descriptors += measured.descriptors
        self.batches += 1
        self.concurrency = max(self.concurrency, measured.concurrency)
        self.registration_s += measured.registration_s
        self.first_contact_s += measured.first_contact_s
        self.post_s += measured.post_s
        self.wire_s += measured.wire_s
        self.transport_s += measured.total_s

    def scattered(self, message: Scattered) -> None:
        self.convert_s += message.convert_s
        self.scatter_s += message.scatter_s

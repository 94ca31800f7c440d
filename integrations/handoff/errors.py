"""What can go wrong with a handoff beyond what can go wrong with a move."""

from kvferry.integrations.transports.errors import TransportError

__all__ = ["Corrupt", "GivenUp"]


class Corrupt(TransportError):
    """Page `page` of the destination is not what the source sent."""

    def __init__(self, page: int, how: str) -> None:
        super().__init__(f"page {page}: {how}")
        self.page = page


class GivenUp(TransportError):
    """The source gave the move up; the message says why."""

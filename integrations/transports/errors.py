"""What can go wrong with a move, and whether its destination may still be written afterwards."""

__all__ = [
    "BadRange",
    "Cancelled",
    "DeadlinePassed",
    "Missing",
    "PeerGone",
    "Refused",
    "TransportError",
    "Wedged",
]


class TransportError(Exception):
    """A move, or the way to one, failed.

    `may_still_write` is True where the library may go on writing the destination after this error: the pages
    have to be quarantined before they are used for anything else.
    """

    def __init__(self, message: str, *, may_still_write: bool = False) -> None:
        super().__init__(message)
        self.may_still_write = may_still_write


class Missing(TransportError):
    """The transport's library is not installed or does not load; the message says what to install."""


class Refused(TransportError):
    """The transport was asked for what it does not do; nothing was written."""


class BadRange(TransportError):
    """Descriptor `descriptor` of the batch leaves the registered memory; nothing was written."""

    def __init__(self, side: str, descriptor: int, address: int, nbytes: int) -> None:
        super().__init__(
            f"descriptor {descriptor}: {side} {address:#x} to {address + nbytes:#x} ({nbytes} bytes) "
            "is not inside one registered region"
        )
        self.side, self.descriptor, self.address, self.nbytes = side, descriptor, address, nbytes


class PeerGone(TransportError):
    """The peer does not answer, closed the connection, or was replaced by a newer one of its name."""


class DeadlinePassed(TransportError):
    """The caller's own deadline passed before the move was done."""


class Cancelled(TransportError):
    """The caller cancelled the move."""


class Wedged(TransportError):
    """The library gave the move up though the peer answers; its engine is replaced for the next move."""

"""Why a move cannot be done."""


class Impossible(ValueError):
    """Raised for a move that no way of moving can do; `reason` is one line for people."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

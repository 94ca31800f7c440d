"""Who may claim KV memory next, local or split requests, while both wait for it."""

from typing import Literal

Side = Literal["local", "split"]


class FairShare:
    """Of the KV tokens admitted while both sides wait, local requests get `share`, split ones the rest.

    `credit` = share * split tokens - (1 - share) * local tokens, over contended admissions alone: what one
    side takes while the other wants nothing is nobody's loss and is not counted. Local's turn while it is
    not negative. While only the side whose turn it is admits, the two sums stay within one admission of
    their shares; beyond `window_tokens` (in either direction) the past is forgotten, so that neither side can
    save up for more than about that many tokens in a row. Raises ValueError unless 0 < share < 1.
    """

    def __init__(self, share: float, window_tokens: int) -> None:
        if not 0.0 < share < 1.0:
            raise ValueError(f"share must lie between 0 and 1, not be {share:g}")
        self.share = share
        self.window_tokens = window_tokens
        self.credit = 0.0
        self.contended_tokens: dict[Side, int] = {"local": 0, "split": 0}

    @property
    def turn(self) -> Side:
        """The side that goes first when both wait."""
        return "local" if self.credit >= 0.0 else "split"

    def may_admit(self, side: Side, other_waits: bool) -> bool:
        """Whether this side may claim memory that the other could use."""
        return not other_waits or self.turn == side

    def charge(self, side: Side, tokens: int, other_waits: bool) -> None:
        """`tokens` of KV were given to `side`, prompt and reserve."""
        if not other_waits:
            return
        self.contended_tokens[side] += tokens
        earned = self.share * tokens if side == "split" else -(1.0 - self.share) * tokens
        self.credit = min(self.window_tokens, max(-self.window_tokens, self.credit + earned))

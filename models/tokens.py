"""How many tokens a prompt of so many bytes will have, learned per kind of prompt."""

from dataclasses import dataclass, field

PRIOR_TOKENS_PER_BYTE = 0.25  # English text under byte-pair encodings: about four bytes a token
PRIOR_BYTES = 2_000.0
FORGETTING = 0.98


@dataclass(slots=True)
class _Sums:
    tokens: float = PRIOR_TOKENS_PER_BYTE * PRIOR_BYTES
    size_bytes: float = PRIOR_BYTES


@dataclass(slots=True)
class TokenRatio:
    """tokens = bytes * (sum of tokens / sum of bytes), both sums decayed by FORGETTING per sample.

    Keyed by (model, kind of prompt). The prior counts as one prompt of PRIOR_BYTES bytes.
    """

    _sums: dict[tuple[str, str], _Sums] = field(default_factory=dict)

    def per_byte(self, model: str, kind: str) -> float:
        sums = self._sums.get((model, kind))
        return sums.tokens / sums.size_bytes if sums else PRIOR_TOKENS_PER_BYTE

    def tokens(self, model: str, kind: str, size_bytes: int) -> int:
        """Expected tokens of a prompt, at least one."""
        return max(1, round(size_bytes * self.per_byte(model, kind)))

    def learn(self, model: str, kind: str, size_bytes: int, tokens: int) -> None:
        """A worker said how many tokens a prompt had."""
        if size_bytes <= 0 or tokens <= 0:
            return
        sums = self._sums.setdefault((model, kind), _Sums())
        sums.tokens = FORGETTING * sums.tokens + tokens
        sums.size_bytes = FORGETTING * sums.size_bytes + size_bytes

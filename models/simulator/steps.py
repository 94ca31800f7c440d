"""How long one engine step truly takes, from measured kernel tables."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of a step of B decodes with S context tokens in all, beside n prefill tokens.

    pure decode: decode_s[B] + context_s * S
    with prefill: tokens_s[n + B] + attention_s * sum over prompts of n_i (p_i + n_i / 2)
                  + context_s * S + (mixed_s if B > 0)
    where p_i tokens of prompt i were computed before. The two lists are baked for every integer from 0;
    beyond their end the last difference goes on.
    """

    decode_table_s: list[float]
    tokens_table_s: list[float]
    attention_s: float
    context_s: float
    mixed_s: float

    def decode_s(self, batch: int) -> float:
        """Seconds of a pure decode step, without its context."""
        return _at(self.decode_table_s, batch)

    def tokens_s(self, tokens: int) -> float:
        """Seconds of a step with prefill over `tokens` = n + B tokens, without attention and context."""
        return _at(self.tokens_table_s, tokens)


def _at(table: list[float], index: int) -> float:
    if index < len(table):
        return table[index]
    return table[-1] + (index - len(table) + 1) * (table[-1] - table[-2])

"""How many tokens a model's answers have, learned from those that ended."""

import math
from dataclasses import dataclass, field

PRIOR_TOKENS = 256.0
# What a request is thought to generate at most when nobody says: longer ones are rare.
CAP_TOKENS = 4096.0
PRIOR_ANSWERS = 8.0
FORGETTING = 0.99
# Bins of lengths: four for every doubling.
PER_DOUBLING = 4.0
BINS = 72
MOST_TOKENS = 1e6
MOST_WEIGHT = 1e12


@dataclass(slots=True)
class OutputTokens:
    """Lengths of answers as a histogram in which every answer weighs FORGETTING times the next one.

    An answer that was cut off (by its own limit or by its client) tells only that it would have been longer:
    the share of those that reach a bin and end there makes the distribution (Kaplan and Meier's product);
    what it leaves over lies PRIOR_TOKENS beyond the longest. Weighed against the prior as PRIOR_ANSWERS
    answers: mean PRIOR_TOKENS, and for the 90th percentile no bound but the limit.
    """

    _ended: list[float] = field(default_factory=lambda: [0.0] * BINS)
    _cut: list[float] = field(default_factory=lambda: [0.0] * BINS)
    _tokens: list[float] = field(default_factory=lambda: [0.0] * BINS)
    _weight: float = 1.0
    _total: float = 0.0
    _known: tuple[tuple[float, float], ...] | None = ()

    def observe(self, tokens: float, *, cut: bool = False) -> None:
        """An answer of `tokens` tokens has ended; `cut`: not by itself. Fewer than one say nothing."""
        if not 1.0 <= tokens < math.inf:
            return
        tokens = min(tokens, MOST_TOKENS)
        place = min(int(math.log2(tokens) * PER_DOUBLING), BINS - 1)
        self._weight /= FORGETTING
        (self._cut if cut else self._ended)[place] += self._weight
        self._tokens[place] += self._weight * tokens
        self._total += self._weight
        if self._weight > MOST_WEIGHT:
            for sums in (self._ended, self._cut, self._tokens):
                sums[:] = [each / self._weight for each in sums]
            self._total /= self._weight
            self._weight = 1.0
        self._known = None

    def expect(self, max_new_tokens: float | None = None) -> tuple[float, float]:
        """(mean, 90th percentile) of an answer's tokens, neither under 1 nor over its limit."""
        limit = max(1.0, CAP_TOKENS if max_new_tokens is None else float(min(max_new_tokens, MOST_TOKENS)))
        mean, p90 = min(PRIOR_TOKENS, limit), min(CAP_TOKENS, limit)
        answers, lengths = self._answers, self._lengths()
        if not lengths:
            return mean, p90
        share = answers / (answers + PRIOR_ANSWERS)
        seen_mean = sum(min(tokens, limit) * chance for tokens, chance in lengths)
        seen_p90 = min(_quantile(lengths, 0.9), limit)
        mean += share * (seen_mean - mean)
        p90 = math.exp((1.0 - share) * math.log(p90) + share * math.log(seen_p90))
        return max(1.0, mean), min(max(1.0, mean, p90), limit)

    @property
    def remaining(self) -> float:
        """Mean tokens that an answer found in progress has left: E[X^2] / (2 E[X]), longer ones being met
        more often; by the prior's (exponential) PRIOR_TOKENS as far as nothing was seen."""
        answers, lengths = self._answers, self._lengths()
        if not lengths:
            return PRIOR_TOKENS
        share = answers / (answers + PRIOR_ANSWERS)
        square = sum(tokens * tokens * chance for tokens, chance in lengths)
        mean = sum(tokens * chance for tokens, chance in lengths)
        return (1.0 - share) * PRIOR_TOKENS + share * square / (2.0 * mean)

    @property
    def _answers(self) -> float:
        """How many answers of now the histogram is worth."""
        return self._total / self._weight

    def _lengths(self) -> tuple[tuple[float, float], ...]:
        """(tokens, probability) in rising order; empty when nothing was seen."""
        if self._known is None:
            self._known = tuple(self._product())
        return self._known

    def _product(self) -> list[tuple[float, float]]:
        reach, left, found, longest = self._total, 1.0, list[tuple[float, float]](), 0.0
        for ended, cut, tokens in zip(self._ended, self._cut, self._tokens, strict=True):
            if not tokens:
                continue
            longest = tokens / (ended + cut)
            # those cut in this bin are taken to have been at risk all through it
            if ended > 0.0:
                gone = left * min(1.0, ended / max(reach, ended))
                found.append((longest, gone))
                left -= gone
            reach -= ended + cut
        if left > 1e-9:
            found.append((longest + PRIOR_TOKENS, left))
        return found


def _quantile(lengths: tuple[tuple[float, float], ...], share: float) -> float:
    """The length that `share` of answers do not exceed."""
    for tokens, chance in lengths:
        share -= chance
        if share <= 1e-9:
            return tokens
    return lengths[-1][0]

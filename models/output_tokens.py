"""How many tokens a model's answers have, learned from those that ended."""

import math
from collections.abc import Iterable
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
# No histogram is ever worth more answers than this: the sum of FORGETTING^i.
MOST_ANSWERS = 1.0 / (1.0 - FORGETTING)

# Of one length: its bin, answers that ended there and that were cut, in answers of now, and their tokens.
Bin = tuple[int, float, float, float]


@dataclass(slots=True)
class OutputTokens:
    """Lengths of answers as a histogram in which every answer weighs FORGETTING times the next one.

    An answer that was cut off (by its own limit or by its client) tells only that it would have been longer:
    the share of those that reach a bin and end there makes the distribution (Kaplan and Meier's product);
    what it leaves over lies PRIOR_TOKENS beyond the longest. Weighed (as logarithms) against what is expected
    without it, which counts as PRIOR_ANSWERS answers: by default mean PRIOR_TOKENS, and for the 90th
    percentile no bound but the limit.
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

    def expect(
        self, max_new_tokens: float | None = None, without: tuple[float, float] | None = None
    ) -> tuple[float, float]:
        """(mean, 90th percentile) of an answer's tokens, neither under 1 nor over its limit; `without`: the
        same as it would be if nothing had been seen here."""
        limit = limit_of(max_new_tokens)
        mean, p90 = without or (min(PRIOR_TOKENS, limit), min(CAP_TOKENS, limit))
        lengths = self._lengths()
        if lengths:
            share = self.answers / (self.answers + PRIOR_ANSWERS)
            seen_mean = sum(min(tokens, limit) * chance for tokens, chance in lengths)
            mean = mean ** (1.0 - share) * seen_mean**share
            p90 = p90 ** (1.0 - share) * min(_quantile(lengths, 0.9), limit) ** share
        mean = min(max(1.0, mean), limit)
        return mean, min(max(mean, p90), limit)

    def bins(self) -> list[Bin]:
        """All that it has seen, in rising order."""
        rows = enumerate(zip(self._ended, self._cut, self._tokens, strict=True))
        by = self._weight
        return [(at, ended / by, cut / by, tokens / by) for at, (ended, cut, tokens) in rows if tokens]

    def add(self, bins: Iterable[Bin], share: float = 1.0) -> None:
        """What another has seen, too, each answer counted as `share` of one."""
        by = share * self._weight
        for at, ended, cut, tokens in bins:
            self._ended[at] += by * ended
            self._cut[at] += by * cut
            self._tokens[at] += by * tokens
            self._total += by * (ended + cut)
        self._known = None

    @property
    def remaining(self) -> float:
        """Mean tokens that an answer found in progress has left: E[X^2] / (2 E[X]), longer ones being met
        more often; by the prior's (exponential) PRIOR_TOKENS as far as nothing was seen."""
        lengths = self._lengths()
        if not lengths:
            return PRIOR_TOKENS
        share = self.answers / (self.answers + PRIOR_ANSWERS)
        square = sum(tokens * tokens * chance for tokens, chance in lengths)
        mean = sum(tokens * chance for tokens, chance in lengths)
        return (1.0 - share) * PRIOR_TOKENS + share * square / (2.0 * mean)

    @property
    def answers(self) -> float:
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


def limit_of(max_new_tokens: float | None) -> float:
    """The most tokens that an answer is thought to have."""
    return max(1.0, CAP_TOKENS if max_new_tokens is None else float(min(max_new_tokens, MOST_TOKENS)))


def _quantile(lengths: tuple[tuple[float, float], ...], share: float) -> float:
    """The length that `share` of answers do not exceed."""
    for tokens, chance in lengths:
        share -= chance
        if share <= 1e-9:
            return tokens
    return lengths[-1][0]

"""How many tokens of a prompt to prefill at a time, so that running decodes keep their latency."""

WEIGHT = 0.2  # of a new sample
OUTLIER = 3.0  # no sample counts for more than so many times, or less than one such part of, the estimate


class Estimate:
    """A mean that forgets (EWMA) and that no single sample can move far; None before the first."""

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, sample: float, weight: float = WEIGHT) -> None:
        """Samples that are not positive say nothing and are ignored."""
        if sample <= 0.0:
            return
        if self.value is None:
            self.value = sample
            return
        bounded = min(OUTLIER * self.value, max(self.value / OUTLIER, sample))
        self.value += weight * (bounded - self.value)


class ChunkLength:
    """`tokens` = (itl_target_s - decode step) / seconds per prefilled token, within the limits.

    A running decode waits for one chunk and one step between two of its tokens. Both times are measured; the
    fewer tokens a chunk had, the less it counts, because a fixed cost per chunk weighs more in it. Limits
    and result are whole pages; a limit under one page is one page.
    """

    def __init__(self, itl_target_s: float, min_tokens: int, max_tokens: int, page_tokens: int) -> None:
        self.itl_target_s = itl_target_s
        self.page_tokens = page_tokens
        self.max_tokens = max(page_tokens, max_tokens // page_tokens * page_tokens)
        self.min_tokens = min(self.max_tokens, -(-max(1, min_tokens) // page_tokens) * page_tokens)
        self._token_s, self._step_s = Estimate(), Estimate()

    def observe_chunk(self, tokens: int, took_s: float) -> None:
        """A chunk of `tokens` took so long."""
        if tokens > 0:
            self._token_s.add(took_s / tokens, WEIGHT * min(1.0, tokens / self.min_tokens))

    def observe_decode(self, took_s: float) -> None:
        """A decode step took so long."""
        self._step_s.add(took_s)

    def tokens(self, decodes: int) -> int:
        """For the next chunk, with so many running decodes: all that is allowed when there are none, and as
        little as allowed before anything was measured."""
        if decodes <= 0:
            return self.max_tokens
        if self._token_s.value is None:
            return self.min_tokens
        left_s = self.itl_target_s - (self._step_s.value or 0.0)
        fitting = min(float(self.max_tokens), left_s / self._token_s.value)  # which may be infinite
        pages = int(max(0.0, fitting) // self.page_tokens)
        return max(self.min_tokens, pages * self.page_tokens)

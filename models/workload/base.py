"""A workload: which requests come when. Arrays, one row per request, in the order of their arrival."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# What a client is taken to ask for where nobody knows: a limit that no answer reaches tells nothing of it.
MAX_NEW_TOKENS = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """N requests. `arrival_s` does not decrease and starts at or after 0.

    `output_tokens` is the truth that no router sees; `max_new_tokens` is what the client asked for.
    `block_ids[block_starts[i]:block_starts[i + 1]]` names the prompt's leading full blocks of
    `block_tokens` tokens each: equal ids at equal places are equal prompts up to there. `session` numbers
    conversations (-1: none).
    """

    name: str
    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    max_new_tokens: Ints
    block_tokens: int
    block_ids: Ints
    block_starts: Ints
    session: Ints

    def __post_init__(self) -> None:
        count = len(self.arrival_s)
        for name in ("prompt_tokens", "output_tokens", "max_new_tokens", "session"):
            if len(getattr(self, name)) != count:
                raise ValueError(
                    f"workload {self.name!r}: {name} has {len(getattr(self, name))} rows, not {count}"
                )
        if len(self.block_starts) != count + 1:
            raise ValueError(f"workload {self.name!r}: block_starts has {len(self.block_starts)} entries")
        if count and (np.any(np.diff(self.arrival_s) < 0) or self.arrival_s[0] < 0):
            raise ValueError(f"workload {self.name!r}: arrivals are not in order of time")
        if count and min(self.prompt_tokens.min(), self.output_tokens.min()) < 1:
            raise ValueError(f"workload {self.name!r}: a request has no prompt or no output")

    @classmethod
    def of(
        cls,
        name: str,
        arrival_s: Sequence[float] | Floats,
        prompt_tokens: Sequence[int] | Ints,
        output_tokens: Sequence[int] | Ints,
        *,
        blocks: Sequence[Sequence[int]] | None = None,
        block_tokens: int = 512,
        max_new_tokens: Sequence[int] | Ints | None = None,
        session: Sequence[int] | Ints | None = None,
    ) -> "Workload":
        """From plain columns; without `blocks` no prompt shares anything, and without `max_new_tokens` every
        client asks for the same large number, which tells nothing. ValueError says what is wrong."""
        count = len(arrival_s)
        lengths = [len(row) for row in blocks] if blocks is not None else [0] * count
        starts = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))).astype(np.int64)
        ids = [block for row in blocks for block in row] if blocks is not None else []
        outputs = np.asarray(output_tokens, dtype=np.int64)
        asked = np.full(count, MAX_NEW_TOKENS, dtype=np.int64)
        return cls(
            name=name,
            arrival_s=np.asarray(arrival_s, dtype=np.float64),
            prompt_tokens=np.asarray(prompt_tokens, dtype=np.int64),
            output_tokens=outputs,
            max_new_tokens=asked if max_new_tokens is None else np.asarray(max_new_tokens, dtype=np.int64),
            block_tokens=block_tokens,
            block_ids=np.asarray(ids, dtype=np.int64),
            block_starts=starts,
            session=np.full(count, -1, dtype=np.int64)
            if session is None
            else np.asarray(session, dtype=np.int64),
        )

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def duration_s(self) -> float:
        """From 0 to the last arrival."""
        return float(self.arrival_s[-1]) if len(self) else 0.0

    @property
    def rate_rps(self) -> float:
        """Mean arrivals per second."""
        return len(self) / self.duration_s if self.duration_s > 0 else 0.0

    def blocks_of(self, row: int) -> list[int]:
        """The prompt's leading full blocks."""
        return self.block_ids[self.block_starts[row] : self.block_starts[row + 1]].tolist()  # type: ignore[no-any-return]

    def rows(self, first: int, last: int) -> "Workload":
        """Requests `first` to `last` (exclusive), moved so that time begins when the first arrives."""
        first, last = max(0, first), min(last, len(self))
        start = self.block_starts[first]
        times = self.arrival_s[first:last]
        return replace(
            self,
            arrival_s=times - times[0] if len(times) else times,
            prompt_tokens=self.prompt_tokens[first:last],
            output_tokens=self.output_tokens[first:last],
            max_new_tokens=self.max_new_tokens[first:last],
            block_ids=self.block_ids[start : self.block_starts[last]],
            block_starts=self.block_starts[first : last + 1] - start,
            session=self.session[first:last],
        )

    def between(self, start_s: float, end_s: float) -> "Workload":
        """Requests that arrive in [start_s, end_s), moved so that time begins at `start_s`."""
        first, last = np.searchsorted(self.arrival_s, (start_s, end_s))
        part = self.rows(int(first), int(last))
        return replace(part, arrival_s=self.arrival_s[first:last] - start_s)

    def take(self, order: Ints, arrival_s: Floats) -> "Workload":
        """The requests `order` names, in that order, at new times."""
        counts = np.diff(self.block_starts)[order]
        starts = np.concatenate(([0], np.cumsum(counts)))
        places = np.arange(starts[-1]) + np.repeat(self.block_starts[:-1][order] - starts[:-1], counts)
        return replace(
            self,
            arrival_s=arrival_s,
            prompt_tokens=self.prompt_tokens[order],
            output_tokens=self.output_tokens[order],
            max_new_tokens=self.max_new_tokens[order],
            block_ids=self.block_ids[places],
            block_starts=starts,
            session=self.session[order],
        )

    def faster(self, factor: float) -> "Workload":
        """The same requests with all gaps divided by `factor`: every burst keeps its shape."""
        if factor <= 0:
            raise ValueError(f"a rate cannot be scaled by {factor}")
        return replace(self, arrival_s=self.arrival_s / factor)

"""Conversations: turns whose prompts hold everything that was said before."""

from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from kvferry.models.workload.base import MAX_NEW_TOKENS, Floats, Ints, Workload
from kvferry.models.workload.lengths import Fixed, Lengths, whole

ONE: Final = Fixed(1)
NOTHING: Final = Fixed(0)
SAMPLE = 4000

N = TypeVar("N", Floats, Ints)


@dataclass(frozen=True, slots=True)
class Session:
    """One kind of conversation. A single request is one of one turn.

    A turn's prompt: system prompt + `opening` tokens, and for each turn before: its output + `follow`
    new tokens (the user's next words, or a tool's output). The next turn comes `wait_s` after the last
    answer has ended, taken to last `s_per_token` each token. One of `system_prompts` prompts of
    `system_tokens` stands before every conversation and is shared. A conversation ends early when its
    next prompt would be longer than `limit_tokens`.
    """

    opening: Lengths
    output: Lengths
    turns: Lengths = ONE
    follow: Lengths = NOTHING
    wait_s: Lengths = NOTHING
    s_per_token: float = 0.02
    system_tokens: int = 0
    system_prompts: int = 1
    limit_tokens: int = 131_072

    def __post_init__(self) -> None:
        if not 0 <= self.system_tokens < self.limit_tokens or self.system_prompts < 1 or self.s_per_token < 0:
            raise ValueError(
                f"session: system_tokens = {self.system_tokens}, system_prompts = {self.system_prompts}, "
                f"limit_tokens = {self.limit_tokens}, s_per_token = {self.s_per_token}"
            )

    def measured(self, rng: np.random.Generator) -> tuple[float, float]:
        """(mean turns, longest time from first to last turn in seconds) of a sample."""
        time_s, _, _, owner = self._turns(np.zeros(SAMPLE), rng)
        return len(owner) / SAMPLE, float(time_s.max())

    def requests(
        self,
        name: str,
        starts_s: Floats,
        rng: np.random.Generator,
        *,
        block_tokens: int = 512,
        since_s: float = 0.0,
        until_s: float = float("inf"),
    ) -> Workload:
        """The turns in [since, until) of conversations that begin at `starts_s`, in the order of time.

        Time 0 of the workload is `since_s`.
        """
        time_s, prompt, output, owner = self._turns(starts_s, rng)
        system = rng.integers(self.system_prompts, size=len(starts_s))[owner]
        kept = np.flatnonzero((time_s >= since_s) & (time_s < until_s))
        kept = kept[np.argsort(time_s[kept], kind="stable")]
        ids, block_starts = self._blocks(prompt[kept], owner[kept], system[kept], block_tokens)
        return Workload(
            name=name,
            arrival_s=time_s[kept] - since_s,
            prompt_tokens=prompt[kept],
            output_tokens=output[kept],
            max_new_tokens=np.full(len(kept), MAX_NEW_TOKENS),
            block_tokens=block_tokens,
            block_ids=ids,
            block_starts=block_starts,
            session=np.full(len(kept), -1) if self.turns == ONE else owner[kept],
        )

    def _turns(self, starts_s: Floats, rng: np.random.Generator) -> tuple[Floats, Ints, Ints, Ints]:
        """Time, prompt, output and conversation of every turn within `limit_tokens`."""
        turns = np.maximum(1, np.rint(self.turns.draw(len(starts_s), rng))).astype(np.int64)
        owner = np.repeat(np.arange(len(turns)), turns)
        first = np.cumsum(turns) - turns
        is_first = np.zeros(len(owner), dtype=np.bool_)
        is_first[first] = True
        new = whole(np.where(is_first, self.opening.draw(len(owner), rng), self.follow.draw(len(owner), rng)))
        new[first] = np.clip(new[first], 1, self.limit_tokens - self.system_tokens)
        output = np.maximum(1, whole(self.output.draw(len(owner), rng)))
        before = np.where(is_first, 0, np.roll(output, 1))  # the answer of the turn before
        wait_s = np.where(is_first, 0.0, self.wait_s.draw(len(owner), rng) + before * self.s_per_token)
        prompt = self.system_tokens + _running(new + before, first, turns)
        time_s = starts_s[owner] + _running(wait_s, first, turns)
        kept = prompt <= self.limit_tokens
        return time_s[kept], prompt[kept], output[kept], owner[kept]

    def _blocks(self, prompt: Ints, owner: Ints, system: Ints, block_tokens: int) -> tuple[Ints, Ints]:
        """A block within the system prompt is named by that, any other by its conversation and place."""
        counts = prompt // block_tokens
        starts = np.concatenate(([0], np.cumsum(counts)))
        row = np.repeat(np.arange(len(prompt)), counts)
        place = np.arange(starts[-1]) - starts[row]
        shared = self.system_tokens // block_tokens
        width = self.limit_tokens // block_tokens + 1
        own = (self.system_prompts + owner[row]) * width + place
        return np.where(place < shared, system[row] * width + place, own), starts


def _running(values: N, first: Ints, turns: Ints) -> N:
    """Sums from each conversation's first turn on."""
    total = np.cumsum(values)
    sums: N = total - np.repeat(total[first] - values[first], turns)
    return sums

"""How far apart the pages of a prompt lie, where a transport sends neighbours as one."""

from dataclasses import dataclass, field

from kvferry.models.terms.members import Key

# A worker's pool fragments within hundreds of prompts, and is whole again when it was emptied.
OLDER = 0.95
MOST_KEYS = 512


@dataclass(slots=True, eq=False)
class Runs:
    """Descriptors that a moved byte takes beyond those of a prompt in one piece, per link:

        more_per_byte = sum of OLDER^age * (descriptors - those of one piece) / sum of OLDER^age * bytes

    over the moves there, age counted in moves. Measured: 8 descriptors for the first prompts of a worker with
    pages of 16 tokens, 232 for one of 13 MB after a thousand others.
    """

    _sums: dict[Key, tuple[float, float]] = field(default_factory=dict)

    def seen(self, key: Key, more: float, moved_bytes: float) -> None:
        """A move of `moved_bytes` took `more` descriptors than one piece would have."""
        if not (0.0 < moved_bytes < float("inf") and abs(more) < float("inf")):
            return
        sums = self._sums.pop(key, (0.0, 0.0))
        self._sums[key] = (OLDER * sums[0] + max(more, 0.0), OLDER * sums[1] + moved_bytes)
        if len(self._sums) > MOST_KEYS:
            del self._sums[next(iter(self._sums))]

    def more_per_byte(self, key: Key) -> float:
        """0 where nothing was seen."""
        more, moved_bytes = self._sums.get(key, (0.0, 1.0))
        return more / moved_bytes

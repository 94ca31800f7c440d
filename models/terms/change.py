"""Whether something is no longer what it was."""

import math
from dataclasses import dataclass

# In standard deviations. What is within DRIFT is no news; one sample counts as at most CLIP.
DRIFT = 1.0
CLIP = 4.0
SOON = 9.0
LATE = 120.0


@dataclass(slots=True)
class Change:
    """Two cumulative sums (E. S. Page, 1954) of how far samples are off, in standard deviations:

        up <- max(0, up + min(z, CLIP) - DRIFT),   changed when up > up_limit;   down alike, of -z

    With SOON that takes four samples in a row that are clearly off, or ten that are 2 off; one never does,
    nor two or three. With LATE it takes forty: for what something else follows sooner.
    """

    up_limit: float = SOON
    down_limit: float = SOON
    up: float = 0.0
    down: float = 0.0

    def seen(self, z: float) -> bool:
        """One more sample; True when they no longer fit what was expected: it starts anew then."""
        if not math.isfinite(z):
            return False
        self.up = max(0.0, self.up + min(z, CLIP) - DRIFT)
        self.down = max(0.0, self.down + min(-z, CLIP) - DRIFT)
        if self.up <= self.up_limit and self.down <= self.down_limit:
            return False
        self.up = self.down = 0.0
        return True

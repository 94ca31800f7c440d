"""One compared figure."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """`error`: relative; `limit`: what was asked for (None: only reported); `note`: why it is as it is.

    Where many points are compared, `measured` and `simulated` are None, `error` and `p90` are the median and
    the 90th percentile of the errors' sizes, and `bias` is the median error itself.
    """

    part: str
    metric: str
    error: float
    limit: float | None = None
    measured: float | None = None
    simulated: float | None = None
    points: int = 1
    p90: float | None = None
    bias: float | None = None
    note: str = ""

    @property
    def worse(self) -> bool:
        return self.limit is not None and abs(self.error) > self.limit

    def told(self) -> dict[str, Any]:
        return {**asdict(self), "worse": self.worse}

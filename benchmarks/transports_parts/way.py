"""Everything that is measured of one transport, and what was asked of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from transports_parts.alternate import WARM, Compared
from transports_parts.fitting import FITTED, OTHERS, Prediction, prediction
from transports_parts.handoffs import handoffs
from transports_parts.overhead import overhead
from transports_parts.pair import pair

from kvferry.integrations.probe.grid import LARGEST_BYTES
from kvferry.models.moves.choose import Form

OVERHEAD = 1.10
TIMES_FASTER: Mapping[str, float] = {"mooncake": 3.0, "nixl cma": 2.0}
ERROR = 0.12


@dataclass(frozen=True, slots=True)
class Way:
    """Minima are judged: what is above them is other work on the machine."""

    name: str
    executor: Compared
    handoff: Compared
    staged: Compared
    fit: Prediction

    @property
    def times_faster(self) -> float | None:
        """What was asked of the staged form; None where nothing was."""
        return TIMES_FASTER.get(self.name)

    @property
    def met(self) -> bool:
        staged = self.times_faster is None or 1.0 / self.staged.least >= self.times_faster
        return self.executor.least <= OVERHEAD and staged and self.fit.median <= ERROR

    @property
    def row(self) -> dict[str, Any]:
        """As JSON; times in milliseconds."""
        curve = self.fit.fitted.curve
        compared = {"executor": self.executor, "handoff": self.handoff, "staged": self.staged}
        return {
            "met": self.met,
            "asked": {"executor": OVERHEAD, "times_faster": self.times_faster, "error": ERROR},
            **{name: _row(one) for name, one in compared.items()},
            "fit": {
                "fitted_moves": len(FITTED),
                "other_moves": len(OTHERS),
                "samples": len(self.fit.samples),
                "error_median": round(self.fit.median, 4),
                "error_p90": round(self.fit.p90, 4),
                "alpha_us": round(curve.alpha_s * 1e6, 1),
                "beta_gb_s": round(curve.beta_bytes_per_s / 1e9, 3),
                "gamma_us": round(curve.last_gamma_s * 1e6, 2),
                "two_regimes": curve.two_regimes,
            },
        }


def measured(name: str, pairs: int, staged: int, repeats: int, report: Callable[[float, float], None]) -> Way:
    """`report` is told of steps done and of all. `Missing` where the transport's library does not load."""
    done, steps = 0, 2 * (WARM + pairs) + WARM + staged + 1 + repeats

    def advance() -> None:
        nonlocal done
        report(done := done + 1, steps)

    with pair(name, LARGEST_BYTES) as both:
        return Way(
            name,
            overhead(both, pairs, advance),
            handoffs(both, Form.SCATTERED, pairs, advance),
            handoffs(both, Form.STAGED, staged, advance),
            prediction(both, repeats, advance),
        )


def _row(compared: Compared) -> dict[str, Any]:
    return {
        "ratio": round(compared.least, 3),
        "ratio_of_medians": round(compared.median, 3),
        "ours_ms": [round(took_s * 1e3, 2) for took_s in compared.ours_s],
        "theirs_ms": [round(took_s * 1e3, 2) for took_s in compared.theirs_s],
    }

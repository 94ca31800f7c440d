"""One path of `kvferry probe run`, with the field names of its `--json`."""

import math
from dataclasses import dataclass

from kvferry.models.paths.change import Changed
from kvferry.models.paths.curve import Curve
from kvferry.models.paths.fit import Fit
from kvferry.models.paths.judge import Judgement
from kvferry.models.paths.words import gb_s, size, us

# Beyond this a straight line says little.
POOR = 0.3
# Another rate beyond a split is told of when KV is moved in that sizes, and rates or times differ so much.
MATTERS_BYTES = 2**20
MATTERS_TIMES = 1.5


@dataclass(frozen=True, slots=True)
class PathReport:
    """`beta_gb_s` and `gamma_us` are those of large moves, `fit_error` the median of |predicted - seen| /
    seen on moves that the fit has not seen."""

    src: str
    dst: str
    transport: str
    alpha_us: float
    beta_gb_s: float
    gamma_us: float
    registration_us: float
    first_contact_ms: float
    fit_error: float
    claimed_class: str
    verdict: str

    @property
    def line(self) -> str:
        """One line for people: "cpu-2 to cpu-5 over mooncake: ..."."""
        return f"{self.src} to {self.dst} over {self.transport}: {self.verdict}"


def report(
    src: str,
    dst: str,
    transport: str,
    fitted: Fit,
    judgement: Judgement,
    registration_s: float = 0.0,
    first_contact_s: float = 0.0,
    change: Changed | None = None,
) -> PathReport:
    """The judgement's verdict, then what has changed, then that the fit is poor where it is."""
    curve = fitted.curve
    parts = [judgement.verdict, *([change.words] if change else [])]
    if fitted.median_error > POOR:
        parts.append(f"the fit errs {fitted.median_error:.0%}")
    else:
        parts += _regimes(curve)
    return PathReport(
        src,
        dst,
        transport,
        alpha_us=curve.alpha_s * 1e6,
        beta_gb_s=curve.beta_bytes_per_s / 1e9 if math.isfinite(curve.beta_bytes_per_s) else 0.0,
        gamma_us=curve.last_gamma_s * 1e6,
        registration_us=registration_s * 1e6,
        first_contact_ms=first_contact_s * 1e3,
        fit_error=fitted.median_error,
        claimed_class=judgement.claimed_class,
        verdict="; ".join(parts),
    )


def _regimes(curve: Curve) -> list[str]:
    """How large moves differ from small ones, where that matters."""
    if not curve.two_regimes or curve.split_bytes < MATTERS_BYTES:
        return []
    told, first, last = [], curve.first_beta_bytes_per_s, curve.beta_bytes_per_s
    if max(first, last) > MATTERS_TIMES * min(first, last):
        why = " (a shaper's burst or a cache)" if first > last else ""
        at = f"at {gb_s(first)}" if math.isfinite(first) else "at once"
        told.append(f"the first {size(curve.split_bytes)} of a move go {at}{why}, the rest at {gb_s(last)}")
    if curve.jump_s > (MATTERS_TIMES - 1.0) * curve.predict(curve.split_bytes):
        told.append(f"moves above {size(curve.split_bytes)} take {us(curve.jump_s)} more")
    return told

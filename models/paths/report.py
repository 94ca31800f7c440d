"""One path of `kvferry probe run`, with the field names of its `--json`."""

import math
from dataclasses import dataclass

from kvferry.models.paths.change import Changed
from kvferry.models.paths.fit import Fit
from kvferry.models.paths.judge import Judgement

# Beyond this a straight line says little.
POOR = 0.3


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
    elif curve.two_regimes:
        mib = curve.split_bytes / 2**20
        parts.append(f"moves above {mib:.3g} MiB go by other numbers")
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

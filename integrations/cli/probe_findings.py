"""What was measured on a path, held against what it claims and what it was before."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from kvferry.integrations.cli.probe_claims import Claims
from kvferry.integrations.cli.probe_hosts import Host
from kvferry.integrations.probe.measured import Measured
from kvferry.models.paths.change import Changed, changed
from kvferry.models.paths.fit import Fit, UnfitError
from kvferry.models.paths.judge import Judgement, judge, meets
from kvferry.models.paths.probed import Probed
from kvferry.models.paths.report import PathReport, report
from kvferry.models.paths.settled import settled
from kvferry.models.paths.words import gb_s

Key = tuple[str, str, str]
# Of `--json`, beside those of the report.
FURTHER = (
    "met", "short", "expected", "looks_like", "checks", "changed", "contention", "split_bytes",
    "first_beta_gb_s", "moves", "error",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """`expected`: whether it meets the class that was asked for; None where none was. `error`: why there are
    no figures, or why they are of fewer moves than wanted. `probed` is what routers are to know of it."""

    measured: Measured
    claimed_class: str
    error: str | None = None
    fitted: Fit | None = None
    judgement: Judgement | None = None
    report: PathReport | None = None
    change: Changed | None = None
    expected: bool | None = None
    probed: Probed | None = None

    @property
    def line(self) -> str:
        """One line for people."""
        one = self.measured
        if self.report is None:
            return f"{one.src} to {one.dst} over {one.transport}: not measured: {self.error}"
        line = self.report.line
        if self.judgement is not None and self.fitted is not None and not self.judgement.checks:
            rate = self.fitted.curve.beta_bytes_per_s
            if math.isfinite(rate):
                line = replace(self.report, verdict=f"{gb_s(rate)}, {self.report.verdict}").line
        return f"{line}; not all was measured: {self.error}" if self.error else line

    @property
    def state(self) -> tuple[object, ...]:
        """What must differ for the judgement to be another one."""
        if self.judgement is None:
            return (self.error,)
        one = self.judgement
        return one.claimed_class, one.met, self.expected, self.error is None

    def told(self) -> dict[str, Any]:
        """For `--json`: every field of every path, None where it is not known or not finite."""
        one = self.measured
        told: dict[str, Any] = {
            **dict.fromkeys((*(field.name for field in fields(PathReport)), *FURTHER)),
            "src": one.src,
            "dst": one.dst,
            "transport": one.transport,
            "claimed_class": self.claimed_class,
            "verdict": "not measured",
            "met": False,
            "expected": self.expected,
            "moves": len(one.samples),
            "error": self.error,
        }
        if self.report is not None and self.judgement is not None and self.fitted is not None:
            curve = self.fitted.curve
            told |= {
                **asdict(self.report),
                "beta_gb_s": curve.beta_bytes_per_s / 1e9,
                "met": self.judgement.met,
                "short": list(self.judgement.short),
                "looks_like": self.judgement.looks_like,
                "checks": list(self.judgement.checks),
                "changed": None if self.change is None else self.change.slower,
                "contention": self.fitted.contention,
                "split_bytes": curve.split_bytes if curve.two_regimes else None,
                "first_beta_gb_s": curve.first_beta_bytes_per_s / 1e9 if curve.two_regimes else None,
            }
        unknown = [
            key for key, value in told.items() if isinstance(value, float) and not math.isfinite(value)
        ]
        return told | dict.fromkeys(unknown)


@dataclass(frozen=True, slots=True)
class Judge:
    """Holds paths against `claims` and, where it is given, the class that each is to meet."""

    claims: Claims
    hosts: Mapping[str, Host]
    expect: str | None = None

    def found(self, measured: Measured, former: Fit | None, now_s: float) -> Finding:
        """`former`: what the path was before; `now_s`: Unix seconds."""
        src, dst = self.hosts[measured.src_address], self.hosts[measured.dst_address]
        claimed = self.claims.of(src, dst, measured.transport).name
        missing = Finding(measured, claimed, measured.error, expected=False if self.expect else None)
        try:
            now = settled(measured.samples)
        except UnfitError as error:
            return missing if measured.error else replace(missing, error=str(error))
        fitted, change, count = now.fitted, now.change, len(measured.samples)
        if change is not None:
            change = replace(change, words=f"{change.words}, since move {now.since + 1} of {count}")
        elif former is not None:
            change = _differ(former, fitted)
        judgement = judge(fitted.curve, claimed, self.claims.links, src.same(dst))
        told = report(
            measured.src,
            measured.dst,
            measured.transport,
            fitted,
            judgement,
            measured.registration_s,
            measured.first_contact_s,
            change,
        )
        return Finding(
            measured,
            claimed,
            measured.error,
            fitted,
            judgement,
            told,
            change,
            meets(fitted.curve, self.expect, self.claims.links) if self.expect else None,
            Probed(
                src.names,
                dst.names,
                measured.transport,
                fitted,
                claimed,
                judgement.met,
                told.verdict,
                measured.registration_s_per_byte,
                measured.first_contact_s,
                now_s,
                now_s,
            ),
        )


def to_keep(found: Sequence[Finding], before: Mapping[Key, Probed]) -> list[Probed]:
    """What routers are to know: of two agents on one host the slower path, and of a path that has not changed
    the figures of before, for on top of those routers have learned."""
    slowest: dict[Key, Probed] = {}
    for one in found:
        if (probed := one.probed) is None:
            continue
        other = slowest.get(probed.key)
        if other is None or _beta(probed) < _beta(other):
            slowest[probed.key] = probed
    return [_kept(one, before.get(one.key)) for one in slowest.values()]


def _kept(now: Probed, before: Probed | None) -> Probed:
    if before is None or (before.claimed_class, before.met) != (now.claimed_class, now.met):
        return now
    if _differ(before.fitted, now.fitted) is not None:
        return now
    return replace(
        before, src_hosts=now.src_hosts, dst_hosts=now.dst_hosts, verdict=now.verdict, seen_s=now.seen_s
    )


def _differ(former: Fit, now: Fit) -> Changed | None:
    return changed(former.curve, now.curve, doubt=former.median_error + now.median_error)


def _beta(one: Probed) -> float:
    return one.fitted.curve.beta_bytes_per_s

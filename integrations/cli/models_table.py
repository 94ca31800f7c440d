"""`kvferry models` as tables of 80 columns."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from kvferry.integrations.registry.audit import AuditEntry
from kvferry.integrations.registry.roles import Roles
from kvferry.models.residual.manifest import ArtifactError, Manifest
from kvferry.policy.decision import STRUCTURED

# Of so many requests or more a model should have corrected this share.
SOME_REQUESTS = 20
SILENT_SHARE = 0.5
# As `models.training.fit` names them, and as they are headed.
SHOWN_METRICS = {
    "rows": "requests",
    "median_ape": "median error",
    "coverage_p50": "under p50",
    "coverage_p90": "p90",
    "coverage_p99": "p99",
}


def versions_table(versions: Mapping[str, Manifest | ArtifactError], roles: Roles) -> Table:
    """The newest last; what cannot be used with why."""
    table = _table("version", "kind", "made", ">rows", ">TTFT error", "role")
    table.add_row(STRUCTURED, "no model", "", "", "", _role(roles, STRUCTURED))
    for version, found in sorted(versions.items(), key=lambda pair: _made(pair[1])):
        if isinstance(found, ArtifactError):
            table.add_row(version, "refused", "", "", "", str(found))
            continue
        error = found.metrics.get("ttft", {}).get("median_ape")
        table.add_row(
            version,
            found.kind,
            _when(found.created_s),
            str(sum(found.rows.values())),
            f"{error:.1%}" if error is not None else "",
            _role(roles, version),
        )
    return table


def arms_table(arms: Mapping[str, Mapping[str, float]]) -> Table:
    """How many requests each arm has met and missed, and in how many its model had a say."""
    table = _table("arm", ">requests", ">missed", ">share", ">corrected by its model")
    for name, of in arms.items():
        shares = (f"{of['missed_share']:.1%}", f"{of['corrected_share']:.0%}" if name != "safe" else "")
        table.add_row(name, f"{of['requests']:.0f}", f"{of['missed']:.0f}", *shares)
    return table


def silent_arms(arms: Mapping[str, Mapping[str, float]], roles: Roles) -> Iterator[str]:
    """A line for each learned version that hardly ever has a say: how its arm fares says nothing of it."""
    for name, version in (("live", roles.live), ("canary", roles.canary)):
        of = arms.get(name)
        if of is None or version in ("", STRUCTURED) or of["requests"] < SOME_REQUESTS:
            continue
        if of["corrected_share"] < SILENT_SHARE:
            yield (
                f"{name}: {version} corrected {of['corrected_share']:.0%} of its requests; the others are "
                "unlike what it was trained on. kvferry logs explain ID says in what; train on this log"
            )


def facts_table(manifest: Manifest, roles: Roles) -> Table:
    """What is said of one version."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, value in (
        ("version", manifest.version),
        ("role", _role(roles, manifest.version) or "none"),
        ("kind", manifest.kind),
        ("made", f"{_when(manifest.created_s)} by kvferry {manifest.kvferry}, seed {manifest.seed}"),
        ("window", f"{_when(manifest.window_from_s)} to {_when(manifest.window_to_s)}"),
        ("rows", ", ".join(f"{name} {count}" for name, count in manifest.rows.items())),
        ("targets", ", ".join(manifest.targets)),
        ("data", manifest.data_sha256[:16]),
        ("weights", manifest.weights_sha256[:16]),
        *(("note", note) for note in manifest.notes),
    ):
        table.add_row(name, value)
    return table


def metrics_table(manifest: Manifest) -> Table:
    """By target, on requests that came after those it was trained on."""
    table = _table("target", *(f">{header}" for header in SHOWN_METRICS.values()))
    for target, of in manifest.metrics.items():
        table.add_row(target, *(_number(name, of.get(name)) for name in SHOWN_METRICS))
    return table


def audit_table(entries: Sequence[AuditEntry]) -> Table:
    """Oldest first."""
    table = _table(">epoch", "when", "who", "command", "what")
    for entry in entries:
        what = entry.changes() + (f"; {entry.reason}" if entry.reason else "")
        table.add_row(str(entry.epoch), _when(entry.time_s), entry.who, entry.command, what)
    return table


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        # the last column takes what is left, in several lines
        wide = name == columns[-1] or name == "who"
        table.add_column(
            name.removeprefix(">"),
            justify="right" if name.startswith(">") else "left",
            overflow="fold",
            no_wrap=not wide,
        )
    return table


def _role(roles: Roles, version: str) -> str:
    role = roles.role_of(version)
    return f"canary {100 * roles.canary_share:.4g}%" if role == "canary" else role


def _made(found: Manifest | ArtifactError) -> float:
    return found.created_s if isinstance(found, Manifest) else 0.0


def _when(time_s: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(time_s))
    except (ValueError, OverflowError, OSError):
        return "never"


def _number(name: str, value: Any) -> str:
    if not isinstance(value, int | float):
        return ""
    return f"{value:.0f}" if name == "rows" else f"{value:.1%}"

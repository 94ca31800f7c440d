"""Measured paths as path classes, in a TOML file that `load_links` reads over the packaged catalogue."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from kvferry.models.link_catalogue import PathRule
from kvferry.models.paths.fit import Fit
from kvferry.policy.link import PathClass

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def measured(
    base: PathClass,
    fitted: Fit,
    source: str,
    name: str = "",
    registration_s_per_byte: float | None = None,
    first_contact_s: float | None = None,
) -> PathClass:
    """`base` with the figures of a fit, under its own name or another; what was not measured stays.

    `beta_low` and `beta_high`: the lasting and the first bandwidth where there are two regimes, and as much
    below and above as the fit errs. Figures are of one move: scope "node".
    """
    curve, error = fitted.curve, min(fitted.median_error, 0.9)
    betas = [curve.beta_bytes_per_s, *([curve.first_beta_bytes_per_s] if curve.two_regimes else [])]
    finite = [beta for beta in betas if math.isfinite(beta)]
    return replace(
        base,
        name=name or base.name,
        alpha_s=curve.alpha_s,
        beta_bytes_per_s=curve.beta_bytes_per_s,
        beta_low_bytes_per_s=min(finite) * (1.0 - error),
        beta_high_bytes_per_s=max(finite) * (1.0 + error),
        gamma_s_per_descriptor=curve.last_gamma_s,
        registration_s_per_byte=_or(registration_s_per_byte, base.registration_s_per_byte),
        first_contact_s=_or(first_contact_s, base.first_contact_s),
        scope="node",
        source=source,
        confidence=f"measured: median error {fitted.median_error:.1%}, largest {fitted.max_error:.0%}",
    )


def toml_of(paths: Iterable[PathClass]) -> str:
    """`[[path]]` tables with every figure of the classes, in the order given.

    `load_links` on a file of it gives them back, to the last digit but one. ValueError for a figure that is
    not finite, and for text that is not UTF-8.
    """
    return "\n".join(_table("path", _entry(path)) for path in paths)


def _entry(path: PathClass) -> Mapping[str, str | float]:
    return {
        "name": path.name,
        "kind": path.kind,
        "scope": path.scope,
        "beta_gb_s": path.beta_bytes_per_s / 1e9,
        "beta_low_gb_s": path.beta_low_bytes_per_s / 1e9,
        "beta_high_gb_s": path.beta_high_bytes_per_s / 1e9,
        "alpha_us": path.alpha_s * 1e6,
        "gamma_us": path.gamma_s_per_descriptor * 1e6,
        "handoff_ms": path.handoff_s * 1e3,
        "registration_ms_per_gb": path.registration_s_per_byte * 1e12,
        "first_contact_ms": path.first_contact_s * 1e3,
        "confidence": path.confidence,
        "source": path.source,
    }


def rules_of(rules: Iterable[PathRule]) -> str:
    """`[[rule]]` tables, in the order given; `load_rules` on a file of them gives them back."""
    return "\n".join(_table("rule", _conditions(rule)) for rule in rules)


def _conditions(rule: PathRule) -> Mapping[str, str | float | bool | Sequence[str]]:
    given = {
        "transport": rule.transport,
        "same_host": rule.same_host,
        "rdma": rule.rdma,
        "gpu": rule.gpu or None,
        "src_host": rule.src_host or None,
        "dst_host": rule.dst_host or None,
    }
    return {**{key: value for key, value in given.items() if value is not None}, "path": rule.path}


def _table(name: str, entry: Mapping[str, str | float | bool | Sequence[str]]) -> str:
    lines = [f"{_key(key)} = {_value(value)}\n" for key, value in entry.items()]
    return f"[[{_key(name)}]]\n{''.join(lines)}"


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _quoted(key)


def _value(value: str | float | bool | Sequence[str]) -> str:
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Sequence):
        return f"[{', '.join(map(_quoted, value))}]"
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a figure")
    return repr(float(value))


def _quoted(text: str) -> str:
    """A basic string of one line: what TOML forbids there is escaped."""
    text.encode("utf-8")
    return '"' + "".join(_SHORT.get(char) or _plain(char) for char in text) + '"'


def _plain(char: str) -> str:
    return f"\\u{ord(char):04X}" if ord(char) < 32 or ord(char) == 127 else char


def _or(value: float | None, default: float) -> float:
    return default if value is None else value

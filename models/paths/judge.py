"""Whether a measured path is what its class says, what it looks like instead, and what to check."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvferry.models.paths.checks import checks
from kvferry.models.paths.curve import Curve
from kvferry.models.paths.looks import best, kinds, possible
from kvferry.models.paths.words import KIND_WORDS, gb_s, share, us
from kvferry.models.toml_file import UnknownNameError
from kvferry.policy.link import PathClass

# A path meets its class with this share of the class's lowest bandwidth; more than this many times its
# highest is another path.
ENOUGH = 0.9
TOO_FAST = 1.25
# Start and descriptors may cost so many times as much, and so much more: they are the machine's as well.
TIMES = 4.0
LATER_S = 100e-6
POSTING_S = 5e-6
# Checks in the verdict's one line; `Judgement.checks` has them all.
TOLD = 3


@dataclass(frozen=True, slots=True)
class Judgement:
    """`ratio`: lasting bandwidth over the claimed class's; `looks_like`: the nearest class of all; `checks`:
    what to look at, the likeliest first, none for a path that is what it claims."""

    claimed_class: str
    met: bool
    ratio: float
    looks_like: str
    looks_like_kinds: tuple[str, ...]
    checks: tuple[str, ...]
    verdict: str


def judge(
    curve: Curve,
    claimed_class: str,
    links: Mapping[str, PathClass],
    same_host: bool | None = None,
    units: int = 1,
) -> Judgement:
    """`units`: NICs or GPUs that moved at once. UnknownNameError for a class that `links` lacks."""
    claimed = _named(claimed_class, links)
    own = Curve.of(claimed, units)
    ratio = curve.beta_bytes_per_s * own.s_per_byte
    paths = possible(links, same_host)
    # A path that fits its own class is not called by another's name because that one fits as well.
    nearest = best(curve, paths or (claimed,), units)
    slow, late, pieces = _short(curve, claimed, own)
    met = not (slow or late or pieces)
    fast = ratio * claimed.beta_bytes_per_s > TOO_FAST * claimed.beta_high_bytes_per_s
    if met and not fast:
        verdict = f"as {claimed.name}"
        return Judgement(claimed.name, True, ratio, nearest.name, (claimed.kind,), (), verdict)
    others = [path for path in paths if path is not claimed]
    looks = kinds(curve, others, units) if slow or fast else ()
    todo = checks(curve, claimed, looks, slow=slow, late=late, pieces=pieces, fast=fast)
    parts = []
    if slow or fast:
        parts.append(f"{share(ratio)} {claimed.name}")
    if late:
        parts.append(f"starts after {us(curve.alpha_s)} where {claimed.name} takes {us(own.alpha_s)}")
    if pieces:
        parts.append(f"{us(curve.last_gamma_s)} a descriptor where {claimed.name} takes {us(own.gamma_s)}")
    names = [KIND_WORDS.get(kind, kind) for kind in looks if kind != claimed.kind]
    if looks and nearest.kind == claimed.kind and nearest is not claimed:
        parts.append(f"looks like {' or '.join((nearest.name, *names))}")
    elif names:
        parts.append(f"looks like {' or '.join(names)} (nearest: {nearest.name})")
    parts.append(f"check: {', '.join(todo[:TOLD])}")
    return Judgement(
        claimed.name,
        met,
        ratio,
        nearest.name,
        looks,
        todo,
        f"{gb_s(curve.beta_bytes_per_s)}, {'; '.join(parts)}",
    )


def meets(curve: Curve, expected_class: str, links: Mapping[str, PathClass], units: int = 1) -> bool:
    """Whether bandwidth, start and descriptors are at least about those of the class; faster is fine.

        beta >= ENOUGH * beta_low,  alpha <= TIMES * alpha + LATER_S,  gamma <= TIMES * gamma + POSTING_S

    UnknownNameError for a class that `links` lacks.
    """
    expected = _named(expected_class, links)
    return not any(_short(curve, expected, Curve.of(expected, units)))


def _short(curve: Curve, claimed: PathClass, own: Curve) -> tuple[bool, bool, bool]:
    """Which of bandwidth, start and descriptors fall short of a class."""
    beta = curve.beta_bytes_per_s * own.s_per_byte * claimed.beta_bytes_per_s
    return (
        beta < ENOUGH * claimed.beta_low_bytes_per_s,
        curve.alpha_s > TIMES * own.alpha_s + LATER_S,
        curve.last_gamma_s > TIMES * own.gamma_s + POSTING_S,
    )


def _named(name: str, links: Mapping[str, PathClass]) -> PathClass:
    if name not in links:
        raise UnknownNameError(f"no path class {name!r}: known are {', '.join(sorted(links))}")
    return links[name]

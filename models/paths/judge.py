"""Whether a measured path is what its class says, what it looks like instead, and what to check."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvferry.models.paths.checks import PIECES, RATE, START, checks
from kvferry.models.paths.curve import Curve
from kvferry.models.paths.looks import TCP_GAMMA_S, best, kinds, named, possible
from kvferry.models.paths.words import KIND_WORDS, gb_s, gb_s_range, share, us
from kvferry.models.toml_file import UnknownNameError
from kvferry.policy.link import PathClass

# A path meets its class with this share of the class's lowest bandwidth; more than this many times its
# highest is another path. Below this share of what is typical the share is told, met or not.
ENOUGH = 0.9
TOO_FAST = 1.25
CLEARLY_LESS = 0.7
# Start and descriptors may cost so many times as much, and so much more: they are the machine's as well.
TIMES = 4.0
LATER_S = 100e-6
POSTING_S = 5e-6
# Checks in the verdict's one line; `Judgement.checks` has them all.
TOLD = 3


@dataclass(frozen=True, slots=True)
class Judgement:
    """`ratio`: lasting bandwidth over the claimed class's; `looks_like`: the nearest class of all; `checks`:
    what to look at, the likeliest first, none for a path that is what it claims; `short`: which of rate,
    start and pieces fall short."""

    claimed_class: str
    met: bool
    ratio: float
    looks_like: str
    looks_like_kinds: tuple[str, ...]
    checks: tuple[str, ...]
    verdict: str
    short: tuple[str, ...] = ()

    @property
    def telling(self) -> bool:
        """Whether the share of the class's bandwidth is worth telling."""
        return not self.met or self.ratio < CLEARLY_LESS


def judge(
    curve: Curve,
    claimed_class: str,
    links: Mapping[str, PathClass],
    same_host: bool | None = None,
    units: int = 1,
) -> Judgement:
    """`units`: NICs or GPUs that moved at once. UnknownNameError for a class that `links` lacks.

    The verdict begins with the bandwidth where there is something to check.
    """
    claimed = _named(claimed_class, links)
    own = Curve.of(claimed, units)
    ratio = curve.beta_bytes_per_s * own.s_per_byte
    paths = possible(links, same_host)
    # A path that fits its own class is not called by another's name because that one fits as well.
    nearest = best(curve, paths or (claimed,), units)
    short = _short(curve, claimed, own)
    fast = ratio * claimed.beta_bytes_per_s > TOO_FAST * claimed.beta_high_bytes_per_s
    # Faster than others of its kind is no fault.
    astray = fast and nearest.kind != claimed.kind
    other = astray or (RATE in short and nearest is not claimed)
    looks = kinds(curve, [path for path in paths if path is not claimed], units) if other else ()
    todo = checks(curve, claimed, looks, short, astray=astray) if short or astray else ()
    parts = [
        *_differs(curve, claimed, own, ratio, short, fast=fast),
        *_looks(curve, claimed, nearest, looks, units),
        *([f"check: {', '.join(todo[:TOLD])}"] if todo else ()),
    ]
    verdict = "; ".join(parts) or f"as {claimed.name}"
    if todo:
        verdict = f"{gb_s(curve.beta_bytes_per_s)}, {verdict}"
    looks = looks or (claimed.kind,) if not short else looks
    return Judgement(claimed.name, not short, ratio, nearest.name, looks, todo, verdict, short)


def meets(curve: Curve, expected_class: str, links: Mapping[str, PathClass], units: int = 1) -> bool:
    """Whether bandwidth, start and descriptors are at least about those of the class; faster is fine.

        beta >= ENOUGH * beta_low,  alpha <= TIMES * alpha + LATER_S,  gamma <= TIMES * gamma + POSTING_S

    where the class's gamma counts at least TCP_GAMMA_S over TCP. UnknownNameError for a class that `links`
    lacks.
    """
    expected = _named(expected_class, links)
    return not _short(curve, expected, Curve.of(expected, units))


def _short(curve: Curve, claimed: PathClass, own: Curve) -> tuple[str, ...]:
    """Which of bandwidth, start and descriptors fall short of a class."""
    beta = curve.beta_bytes_per_s * own.s_per_byte * claimed.beta_bytes_per_s
    gamma_s = max(own.gamma_s, TCP_GAMMA_S) if claimed.kind == "tcp" else own.gamma_s
    found = {
        RATE: beta < ENOUGH * claimed.beta_low_bytes_per_s,
        START: curve.alpha_s > TIMES * own.alpha_s + LATER_S,
        PIECES: curve.last_gamma_s > TIMES * gamma_s + POSTING_S,
    }
    return tuple(name for name, is_short in found.items() if is_short)


def _differs(
    curve: Curve, claimed: PathClass, own: Curve, ratio: float, short: tuple[str, ...], *, fast: bool
) -> list[str]:
    """What of a path is not as is typical of its class."""
    name, lanes = claimed.name, claimed.beta_bytes_per_s * own.s_per_byte
    seen = gb_s_range(claimed.beta_low_bytes_per_s / lanes, claimed.beta_high_bytes_per_s / lanes)
    parts = []
    if RATE in short:
        parts.append(f"{share(ratio)} {name}")
    elif fast:
        parts.append(f"{share(ratio)} {name}, faster than was seen of it ({seen})")
    elif ratio < CLEARLY_LESS:
        below = ratio * claimed.beta_bytes_per_s < claimed.beta_low_bytes_per_s
        parts.append(
            f"{share(ratio)} {name}, {'hardly below' if below else 'within'} what was seen of it ({seen})"
        )
    if START in short:
        parts.append(f"starts after {us(curve.alpha_s)} where {name} takes {us(own.alpha_s)}")
    if PIECES in short:
        parts.append(f"{us(curve.last_gamma_s)} a piece where {name} takes {us(own.gamma_s)}")
    return parts


def _looks(
    curve: Curve, claimed: PathClass, nearest: PathClass, looks: tuple[str, ...], units: int
) -> list[str]:
    """What it looks like instead. A class is named only where it would be about that fast."""
    names = [KIND_WORDS.get(kind, kind) for kind in looks if kind != claimed.kind]
    known = nearest is not claimed and nearest.kind in looks and named(curve, nearest, units)
    if known and nearest.kind == claimed.kind:
        return [f"looks like {' or '.join((nearest.name, *names))}"]
    if not names:
        return []
    return [f"looks like {' or '.join(names)}{f' (nearest: {nearest.name})' if known else ''}"]


def _named(name: str, links: Mapping[str, PathClass]) -> PathClass:
    if name not in links:
        raise UnknownNameError(f"no path class {name!r}: known are {', '.join(sorted(links))}")
    return links[name]

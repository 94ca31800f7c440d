"""What a probe found on the path between two hosts, as routers and files keep it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b

from kvferry.models.link_catalogue import PathRule
from kvferry.models.paths.fit import Fit
from kvferry.models.paths.override import measured, rules_of, toml_of
from kvferry.policy.link import Evidence, Link, PathClass

SOURCE = "kvferry probe"


@dataclass(frozen=True, slots=True)
class Probed:
    """`src_hosts`, `dst_hosts`: names and addresses by which each host is known, its own name first.

    `claimed_class`: what the path was held against, `met` whether it is that; `measured_s`: when, Unix
    seconds, and `seen_s`: when last it still was so. `registration_s_per_byte` and `first_contact_s` as in
    `Link`.
    """

    src_hosts: tuple[str, ...]
    dst_hosts: tuple[str, ...]
    transport: str
    fitted: Fit
    claimed_class: str
    met: bool
    verdict: str
    registration_s_per_byte: float
    first_contact_s: float
    measured_s: float
    seen_s: float

    @property
    def key(self) -> tuple[str, str, str]:
        """Source, destination, transport."""
        return self.src_hosts[0], self.dst_hosts[0], self.transport

    @property
    def name(self) -> str:
        """Of its path class: another one whenever a figure is, for what was learned holds for the old one."""
        curve = self.fitted.curve
        figures = (curve.alpha_s, curve.beta_bytes_per_s, curve.last_gamma_s)
        told = repr((*self.key, *(f"{figure:.9g}" for figure in figures)))
        return f"{self.claimed_class}.probed.{blake2b(told.encode(), digest_size=4).hexdigest()}"

    def path_class(self, base: PathClass) -> PathClass:
        """`base` with what was measured. What is as it claims grows with its NICs or GPUs, as its class does;
        of what is not, all that is known is how fast one move is."""
        path = measured(
            base,
            self.fitted,
            f"{SOURCE}: {self.src_hosts[0]} to {self.dst_hosts[0]} over {self.transport}",
            self.name,
            self.registration_s_per_byte,
            self.first_contact_s,
        )
        alike = self.met and base.name == self.claimed_class
        one_unit = alike and path.beta_bytes_per_s <= base.beta_high_bytes_per_s
        return replace(path, scope=base.scope) if one_unit else path


def by_hosts(found: Iterable[Probed]) -> Mapping[tuple[str, str, str], Probed]:
    """By every (source, destination, transport) that a router may know them by; later ones win."""
    ordered = sorted(found, key=lambda one: one.seen_s)
    return {
        (src, dst, one.transport): one for one in ordered for src in one.src_hosts for dst in one.dst_hosts
    }


def link_of(path: PathClass, src_host: str, dst_host: str, transport: str, units: int) -> Link:
    """A link by a class of the catalogue, or of a probe, which its source says."""
    link = Link.of(path, src_host, dst_host, transport, units)
    return replace(link, evidence=Evidence.PROBE) if path.source.startswith(SOURCE) else link


def toml_of_probed(found: Iterable[Probed], links: Mapping[str, PathClass]) -> str:
    """A file for `kvferry serve --config`: each path's class, and a rule that binds it to its hosts.

    The claimed class must be in `links`.
    """
    paths = list(found)
    rules = [
        PathRule(one.name, one.transport, src_host=one.src_hosts, dst_host=one.dst_hosts) for one in paths
    ]
    return f"{toml_of(one.path_class(links[one.claimed_class]) for one in paths)}\n{rules_of(rules)}"

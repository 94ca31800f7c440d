"""The way of one request's KV: a link, what else is on it, and the prefill that it travels behind."""

from dataclasses import dataclass
from typing import NamedTuple

from kvferry.policy.link import Evidence, Link


class Path(NamedTuple):
    """As links are told apart."""

    src_host: str
    dst_host: str
    transport: str


class Wire(NamedTuple):
    """Seconds on the wire by the catalogue, other moves on it included: of bytes, and of descriptors that
    are posted for a kind of layout relation. `base`: the probe (`base_of`) that they are by instead."""

    bytes_s: float
    posting_s: float = 0.0
    relation: str = ""
    base: str = ""


@dataclass(frozen=True, slots=True)
class Way:
    """A split's move: over which link, among how many others at dispatch, behind what prefill."""

    link: Link
    others: float
    new_tokens: float
    chunk_tokens: float
    first_contact: bool = False

    @property
    def path(self) -> Path:
        return path_of(self.link)

    def wire(self, moved_bytes: float, descriptors: float, relation: str = "") -> Wire:
        """Latency and meeting are not in it."""
        link, crowd = self.link, 1.0 + self.others
        bytes_s = moved_bytes / max(link.beta_bytes_per_s, 1.0)
        posting_s = link.gamma_s_per_descriptor * descriptors
        return Wire(bytes_s * crowd, posting_s * crowd, relation, base_of(link))

    def around_s(self, moved_bytes: float) -> float:
        """Seconds of a move that do not depend on the link's speed."""
        link = self.link
        met_s = link.first_contact_s + link.registration_s_per_byte * moved_bytes
        return link.alpha_s + link.handoff_s + (met_s if self.first_contact else 0.0)


def path_of(link: Link) -> Path:
    """Moves share a path when they share both hosts and the transport."""
    return Path(link.src_host, link.dst_host, link.transport)


def base_of(link: Link) -> str:
    """What a link's figures are by, as far as that can change while a router runs: "" for the catalogue."""
    return link.path_class if link.evidence is Evidence.PROBE else ""

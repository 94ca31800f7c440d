"""The path between two workers' hosts over one transport, and what moving bytes over it costs."""

from dataclasses import dataclass
from enum import StrEnum


class Evidence(StrEnum):
    CATALOGUE = "catalogue"
    PROBE = "probe"
    LEARNED = "learned"


@dataclass(frozen=True, slots=True)
class PathClass:
    """Defaults for a kind of path. `beta_low`/`beta_high` bound the bandwidth seen in the field.

    `kind`: nvlink, rdma_gpudirect, rdma_host, pcie, tcp or shared_memory. `scope` says what one unit of
    the class is: "gpu" (one per GPU pair), "nic" (one per NIC) or "node"; ranks that move over units of
    their own move in parallel.
    """

    name: str
    alpha_s: float
    beta_bytes_per_s: float
    beta_low_bytes_per_s: float
    beta_high_bytes_per_s: float
    gamma_s_per_descriptor: float
    registration_s_per_byte: float = 0.0
    first_contact_s: float = 0.0
    handoff_s: float = 0.0
    source: str = ""
    confidence: str = ""
    kind: str = ""
    scope: str = "node"


@dataclass(frozen=True, slots=True)
class Link:
    """One (source host, destination host, transport).

    transfer_s = alpha + handoff + (bytes / beta + gamma * descriptors) * (1 + in flight), plus registration
    and first contact while the pair has not met. `handoff_s` is what the workers add around a move: the
    handshake, their schedulers' polling, the metadata. `beta_low_bytes_per_s` is the pessimistic bandwidth
    behind the p90. `merges_runs`: neighbouring pages share a descriptor, as Mooncake does and NIXL never
    (measured: 8 against 32,768 descriptors for 4,096 tokens).
    """

    src_host: str
    dst_host: str
    transport: str
    path_class: str
    alpha_s: float
    beta_bytes_per_s: float
    beta_low_bytes_per_s: float
    gamma_s_per_descriptor: float
    registration_s_per_byte: float = 0.0
    first_contact_s: float = 0.0
    handoff_s: float = 0.0
    merges_runs: bool = False
    evidence: Evidence = Evidence.CATALOGUE

    @classmethod
    def of(cls, path: PathClass, src_host: str, dst_host: str, transport: str, units: int = 1) -> "Link":
        """A link with its class's defaults, before anything was measured on it.

        `units`: how many units of a class with scope "gpu" or "nic" move at once (at most the smaller
        TP of the two workers); bandwidth grows and posting time shrinks by that factor.
        """
        lanes = max(1, units) if path.scope in ("gpu", "nic") else 1
        return cls(
            src_host=src_host,
            dst_host=dst_host,
            transport=transport,
            path_class=path.name,
            alpha_s=path.alpha_s,
            beta_bytes_per_s=path.beta_bytes_per_s * lanes,
            beta_low_bytes_per_s=path.beta_low_bytes_per_s * lanes,
            gamma_s_per_descriptor=path.gamma_s_per_descriptor / lanes,
            registration_s_per_byte=path.registration_s_per_byte / lanes,
            first_contact_s=path.first_contact_s,
            handoff_s=path.handoff_s,
            merges_runs=transport == "mooncake",
        )


def transfer_s(
    link: Link, moved_bytes: float, descriptors: float, in_flight: int = 0, first_contact: bool = False
) -> float:
    """Seconds to move `moved_bytes` in `descriptors` pieces while `in_flight` other moves share the path.

    Concurrent moves slow each other down about n-fold (measured over Mooncake TCP and NIXL CMA).
    The vectorised form in `predict` must agree with this one; a test holds them together.
    """
    moving = moved_bytes / link.beta_bytes_per_s + link.gamma_s_per_descriptor * descriptors
    meeting = link.first_contact_s + link.registration_s_per_byte * moved_bytes if first_contact else 0.0
    return link.alpha_s + link.handoff_s + moving * (1 + in_flight) + meeting

"""What was measured on one path: from one host to another over one transport."""

from dataclasses import dataclass

from kvferry.models.paths.sample import Sample

__all__ = ["Measured"]


@dataclass(frozen=True, slots=True)
class Measured:
    """`src` and `dst`: the hosts' names. `samples`: real moves, in the order of their time.

    `registration_s` (s): what registering memory takes however little it is; `registration_s_per_byte`
    (s/byte): what each byte adds; both of the slower of the two hosts. `first_contact_s` (s): what
    connecting and the first move to a peer take beyond a later move of its size. `error`: why the path
    could not be measured, or not to the end; None where it was. What was measured until then stays.
    `src_address` and `dst_address`: the agents, host:port, as the probe reached them.
    """

    src: str
    dst: str
    transport: str
    samples: tuple[Sample, ...] = ()
    registration_s: float = 0.0
    registration_s_per_byte: float = 0.0
    first_contact_s: float = 0.0
    error: str | None = None
    src_address: str = ""
    dst_address: str = ""

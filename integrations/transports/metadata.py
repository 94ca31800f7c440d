"""What a peer is told before it can write here: bytes that are checked before anything in them is believed.

Layout: 4 bytes magic and version, 8 bytes xxh3-64 of the rest (big-endian), then msgpack. The hash finds
damage, not malice: whoever may send metadata may name any address, so it belongs on a trusted channel.
"""

from typing import Annotated, Literal

import msgspec
import xxhash

from kvferry.integrations.transports.base import Region
from kvferry.integrations.transports.errors import Refused

__all__ = ["PeerMetadata", "decode", "encode"]

MAGIC = b"kvT\x01"
HEADER_BYTES = len(MAGIC) + 8

Address = Annotated[int, msgspec.Meta(gt=0)]


class RegionMetadata(msgspec.Struct, frozen=True, array_like=True):
    """A `Region` on the wire; `backing` is the shared file it lies in, if any, and the offset there."""

    address: Address
    nbytes: Address
    kind: Literal["cpu", "cuda"]
    device: Annotated[int, msgspec.Meta(ge=0)]
    backing: tuple[str, int] | None = None

    def region(self) -> Region:
        return Region(self.address, self.nbytes, self.kind, self.device)


class PeerMetadata(msgspec.Struct, frozen=True, array_like=True):
    """One agent: its transport, its name (another one after every start), how it is reached, its regions."""

    transport: str
    agent: str
    session: str
    blob: bytes
    regions: Annotated[tuple[RegionMetadata, ...], msgspec.Meta(min_length=1)]


def encode(metadata: PeerMetadata) -> bytes:
    """Bytes for the peer."""
    body = msgspec.msgpack.encode(metadata)
    return MAGIC + xxhash.xxh3_64_digest(body) + body


def decode(received: bytes, transport: str) -> PeerMetadata:
    """Check and read a peer's bytes; raises `Refused` saying what is wrong with them."""
    if received[: len(MAGIC) - 1] != MAGIC[:-1]:
        raise Refused("not a transport's metadata")
    if received[: len(MAGIC)] != MAGIC:
        raise Refused("metadata of another version of kvferry")
    body = received[HEADER_BYTES:]
    if received[len(MAGIC) : HEADER_BYTES] != xxhash.xxh3_64_digest(body):
        raise Refused("damaged metadata: its checksum is wrong")
    try:
        metadata = msgspec.msgpack.decode(body, type=PeerMetadata)
        for region in metadata.regions:
            region.region()
    except (msgspec.DecodeError, ValueError) as error:
        raise Refused(f"metadata that does not hold: {error}") from error
    if metadata.transport != transport:
        raise Refused(f"metadata of {metadata.transport}, wanted {transport}")
    return metadata

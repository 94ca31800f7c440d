"""Who asks, and with what kind of prompt, as hashes: the names themselves are kept nowhere."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b

HASH_BYTES = 6


def tenant_of(headers: Mapping[str, str], header: str, key: bytes = b"") -> str:
    """Twelve hex digits of what the client's `header` says; "" without it. `headers` ignores case.

    Keyed with the router's API key where it has one: whoever reads the log then cannot try names out.
    """
    name = headers.get(header, "").strip() if header else ""
    return _hash(name.encode(errors="surrogateescape"), b"tenant", key) if name else ""


def family_of(block_hashes: Sequence[int], key: bytes = b"") -> str:
    """Twelve hex digits of a prompt's first block: that many tokens in common are a system prompt's."""
    return _hash(block_hashes[0].to_bytes(8), b"family", key) if block_hashes else ""


def _hash(value: bytes, kind: bytes, key: bytes) -> str:
    return blake2b(value, digest_size=HASH_BYTES, person=kind, key=key[:64]).hexdigest()

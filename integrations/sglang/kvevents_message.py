"""What a worker publishes of its KV cache: msgpack batches of events, as SGLang and its elders pack them."""

import msgspec

GPU = "GPU"
Token = int | tuple[int, int]  # pairs where a draft model's cache is keyed by bigrams


class BlockStored(msgspec.Struct, tag=True, gc=False):
    """Blocks in a row, each of `block_size` tokens, the first one after `parent_block_hash`."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[Token]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    cache_salt: str | None = None
    lora_name: str | None = None

    @property
    def tokens(self) -> list[int]:
        """Of a bigram its first token: the hit it stands for is the same but for the very last token."""
        return [token if isinstance(token, int) else token[0] for token in self.token_ids]

    @property
    def namespace(self) -> str:
        """What keeps these blocks from a plain prompt: an adapter or a salt; empty for most."""
        told = (self.lora_id, self.lora_name, self.cache_salt)
        return "" if told == (None, None, None) else repr(told)


class BlockRemoved(msgspec.Struct, tag=True, gc=False):
    """Blocks that are gone from one medium."""

    block_hashes: list[int]
    medium: str | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, gc=False):
    """The cache was flushed."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class Batch(msgspec.Struct, array_like=True, gc=False):
    """What one scheduler step did: Unix seconds on the worker's clock, and events in their order."""

    ts: float
    events: list[Event]


# Before events were maps they were arrays of their fields, in this order.
class _Stored(msgspec.Struct, tag="BlockStored", array_like=True, gc=False):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[Token]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None


class _Removed(msgspec.Struct, tag="BlockRemoved", array_like=True, gc=False):
    block_hashes: list[int]
    medium: str | None = None


class _Cleared(msgspec.Struct, tag="AllBlocksCleared", array_like=True, gc=False):
    pass


class _OldBatch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[_Stored | _Removed | _Cleared]


_decode = msgspec.msgpack.Decoder(Batch).decode
_decode_old = msgspec.msgpack.Decoder(_OldBatch).decode


def decode(payload: bytes) -> Batch:
    """Read one message's payload. msgspec.DecodeError says what is wrong with it."""
    try:
        return _decode(payload)
    except msgspec.ValidationError as error:
        try:
            old = _decode_old(payload)
        except msgspec.ValidationError:
            raise error from None
    return Batch(old.ts, [_renewed(event) for event in old.events])


def _renewed(event: _Stored | _Removed | _Cleared) -> Event:
    match event:
        case _Stored():
            return BlockStored(
                event.block_hashes,
                event.parent_block_hash,
                event.token_ids,
                event.block_size,
                event.lora_id,
                event.medium,
            )
        case _Removed():
            return BlockRemoved(event.block_hashes, event.medium)
        case _Cleared():
            return AllBlocksCleared()


def on_gpu(event: BlockStored | BlockRemoved) -> bool:
    """Whether it is about the memory that a prefill reads; host and disk copies must be loaded first."""
    return event.medium in (None, GPU)

"""What a request asks of a simulated worker, read from its body."""

import uuid
from array import array
from dataclasses import dataclass

import msgspec

from kvferry.integrations.sglang.body import Body, Endpoint, Ids, parse
from kvferry.integrations.sglang.errors import BadRequest
from kvferry.integrations.sglang.plugin.wire import LOCAL_MARK
from kvferry.integrations.sglang.simulated.lengths import drawn_tokens
from kvferry.integrations.sglang.simulated.options import SimulationOptions
from kvferry.models.prefix import BLOCK_BYTES, BLOCK_TOKENS, block_hashes

TOKENS_PER_BYTE = BLOCK_TOKENS / BLOCK_BYTES
FAKE_HOST = "2.2.2.2"  # SGLang's own: the worker answers without a partner


@dataclass(frozen=True, slots=True)
class Sequence:
    """One prompt's answer. `stops`: it ends by itself, not for its limit."""

    index: int
    rid: str
    prompt_tokens: int
    blocks: tuple[int, ...]
    output_tokens: int
    stops: bool
    room: int | None


@dataclass(frozen=True, slots=True)
class Asked:
    """A request. `several`: its answer is a list. `usage`: a stream ends with its token counts. `host`,
    `port`: where its prefill worker is met; `local`: it is to be prefilled here. `samples` of each prompt
    follow each other."""

    endpoint: Endpoint
    model: str
    stream: bool
    several: bool
    usage: bool
    local: bool
    host: str
    port: int
    samples: int
    sequences: tuple[Sequence, ...]


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = False


class _Bootstrap(msgspec.Struct):
    bootstrap_host: str | list[str | None] | None = None
    bootstrap_port: int | list[int | None] | None = None
    bootstrap_room: int | list[int | None] | None = None
    do_local_prefill: bool | None = None
    stream_options: _StreamOptions | None = None


_bootstrap = msgspec.json.Decoder(_Bootstrap).decode


def asked(endpoint: Endpoint, raw: bytes, model: str, options: SimulationOptions) -> Asked:
    """Read a body. BadRequest says what is wrong with it.

    Text counts TOKENS_PER_BYTE tokens a byte, chat messages as the JSON they are.
    """
    body = parse(endpoint, raw)
    try:
        extra = _bootstrap(raw)
    except msgspec.ValidationError as error:
        raise BadRequest(f"invalid body: {error}") from error
    host, port = _first(extra.bootstrap_host), _first(extra.bootstrap_port)
    rooms = _rooms(extra.bootstrap_room, body.sequences)
    alone = all(room is None for room in rooms)
    return Asked(
        endpoint=endpoint,
        model=body.model or model,
        stream=body.stream,
        several=body.batched or (body.samples > 1 and endpoint is Endpoint.GENERATE),
        usage=bool(extra.stream_options and extra.stream_options.include_usage),
        local=host == LOCAL_MARK or (extra.do_local_prefill is True and alone),
        host=str(host or ""),
        port=port if isinstance(port, int) else 0,
        samples=body.samples,
        sequences=_sequences(body, rooms, options),
    )


def _sequences(body: Body, rooms: list[int | None], options: SimulationOptions) -> tuple[Sequence, ...]:
    rids = body.rids(uuid.uuid4().hex)
    made: list[Sequence] = []
    for place, prompt in enumerate(body.prompts):
        length = len(prompt) if isinstance(prompt, tuple) else max(1, round(len(prompt) * TOKENS_PER_BYTE))
        output, stops = _output(body, prompt, length, options)
        blocks = block_hashes(prompt)
        for _ in range(body.samples):
            rid = rids[place] if body.samples == 1 else uuid.uuid4().hex
            made.append(Sequence(len(made), rid, length, blocks, output, stops, rooms[len(made)]))
    return tuple(made)


def _output(body: Body, prompt: Ids | bytes, length: int, options: SimulationOptions) -> tuple[int, bool]:
    room = options.context_tokens - length
    if room < 1:
        raise BadRequest(
            f"the prompt has {length} tokens: this simulated model's context ends at {options.context_tokens}"
        )
    limit = room if body.max_new_tokens is None else max(1, min(body.max_new_tokens, room))
    if body.ignore_eos:
        return limit, False
    data = prompt if isinstance(prompt, bytes) else array("q", prompt).tobytes()
    drawn = drawn_tokens(data, options.seed, options.output_median, options.output_sigma)
    return min(drawn, limit), drawn <= limit


def _rooms(given: int | list[int | None] | None, count: int) -> list[int | None]:
    if isinstance(given, list):
        if len(given) != count:
            raise BadRequest(f"bootstrap_room has {len(given)} entries for {count} sequences")
        return given
    return [None if given is None else given + place for place in range(count)]


def _first(value: object) -> object:
    return (value[0] if value else None) if isinstance(value, list) else value

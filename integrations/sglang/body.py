"""A client's request body: what the router reads of it, and how fields are added without re-writing it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from kvferry.integrations.sglang.errors import BadRequest

DEFAULT_GENERATE_TOKENS = 128  # SGLang's own default for /generate
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions
MAX_SAMPLES = 128  # OpenAI's limit; each sample is a sequence of its own
MAX_TOKENS = (1 << 31) - 1


class Endpoint(StrEnum):
    GENERATE = "/generate"
    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"


class _Sampling(msgspec.Struct):
    max_new_tokens: int | None = DEFAULT_GENERATE_TOKENS
    n: int | None = 1
    ignore_eos: bool | None = False


class _Generate(msgspec.Struct):
    model: str | None = None
    text: str | list[str] | None = None
    input_ids: msgspec.Raw = msgspec.Raw()
    input_embeds: msgspec.Raw = msgspec.Raw()
    sampling_params: _Sampling | list[_Sampling] | None = None
    stream: bool | None = False
    rid: str | list[str] | None = None
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: int | list[int] | None = None
    priority: int | None = None


class _Completion(msgspec.Struct):
    prompt: msgspec.Raw = msgspec.Raw()
    model: str | None = None
    max_tokens: int | None = DEFAULT_COMPLETION_TOKENS
    n: int | None = 1
    stream: bool | None = False
    rid: str | list[str] | None = None
    ignore_eos: bool | None = False
    priority: int | None = None
    echo: bool | None = False
    logprobs: int | bool | None = None


class _Chat(msgspec.Struct):
    messages: msgspec.Raw = msgspec.Raw()
    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = 1
    stream: bool | None = False
    rid: str | list[str] | None = None
    ignore_eos: bool | None = False
    priority: int | None = None


Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Body:
    """`prompts` holds each prompt as token ids or as bytes; it lives as long as the request and is never
    logged. `batched`: the body carries lists, so that answers come as lists. `input_logprobs`: answers
    must carry what only the prefill worker knows."""

    endpoint: Endpoint
    raw: bytes
    prompts: tuple[Ids | bytes, ...]
    model: str | None = None
    batched: bool = False
    samples: int = 1
    stream: bool = False
    rid: str | list[str] | None = None
    max_new_tokens: int | None = None
    ignore_eos: bool = False
    input_logprobs: bool = False
    priority: int = 0

    @property
    def sequences(self) -> int:
        return len(self.prompts) * self.samples

    @property
    def exact(self) -> bool:
        """Whether the prompt came as token ids, so that its length is known."""
        return isinstance(self.prompts[0], tuple)

    @property
    def prompt_units(self) -> int:
        """Length of all prompts, in tokens when exact, else in bytes."""
        return sum(len(prompt) for prompt in self.prompts)

    def rids(self, request_id: str) -> list[str]:
        """The ids under which a worker will know this request's sequences: the client's, or ours."""
        if isinstance(self.rid, list):
            return self.rid
        base = self.rid or request_id
        return [f"{base}_{i}" for i in range(len(self.prompts))] if self.batched else [base]

    def with_fields(self, fields: dict[str, Any]) -> bytes:
        """The body with fields added at its end, the rest byte for byte as it came."""
        if not fields:
            return self.raw
        stem = self.raw.rstrip()[:-1].rstrip()
        comma = b"" if stem.endswith(b"{") else b","
        return stem + comma + msgspec.json.encode(fields)[1:]

    def expanded(self) -> "Body":
        """n samples of each prompt as a batch of n copies: one bootstrap room cannot serve n sequences.

        Only /generate bodies with n > 1 change; their answers keep the order prompt by prompt.
        """
        if self.samples == 1 or self.endpoint is not Endpoint.GENERATE:
            return self
        count, body = len(self.prompts), msgspec.json.decode(self.raw)
        for name, value in list(body.items()):
            if self.batched and isinstance(value, list) and len(value) == count:
                body[name] = [item for item in value for _ in range(self.samples)]
        for name in ("text", "input_ids"):
            if not self.batched and body.get(name) is not None:
                body[name] = [body[name]] * self.samples
        sampling = body["sampling_params"]
        for one in sampling if isinstance(sampling, list) else [sampling]:
            one["n"] = 1
        if not isinstance(self.rid, str):
            body.pop("rid", None)
        return replace(
            self,
            raw=msgspec.json.encode(body),
            prompts=tuple(prompt for prompt in self.prompts for _ in range(self.samples)),
            batched=True,
            samples=1,
            rid=self.rid if isinstance(self.rid, str) else None,
        )


def parse(endpoint: Endpoint, raw: bytes) -> Body:
    """Read a body; BadRequest says what is wrong with it and where."""
    try:
        match endpoint:
            case Endpoint.GENERATE:
                return _generate(raw)
            case Endpoint.CHAT:
                return _chat(raw)
            case Endpoint.COMPLETIONS:
                return _completion(raw)
    except msgspec.ValidationError as error:
        raise BadRequest(f"invalid body: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"body is not valid JSON: {error}") from error


_decode_generate = msgspec.json.Decoder(_Generate).decode
_decode_completion = msgspec.json.Decoder(_Completion).decode
_decode_chat = msgspec.json.Decoder(_Chat).decode
_decode_text = msgspec.json.Decoder(str | list[str]).decode
_Id = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_decode_ids = msgspec.json.Decoder(list[_Id]).decode
_decode_id_lists = msgspec.json.Decoder(list[list[_Id]]).decode


def _generate(raw: bytes) -> Body:
    body = _decode_generate(raw)
    given = [body.text is not None, _present(body.input_ids), _present(body.input_embeds)]
    if sum(given) != 1:
        wrong = "more than one" if any(given) else "none"
        raise BadRequest(f"need exactly one of text, input_ids and input_embeds: {wrong} was given")
    batched, prompts = _text(body.text) if body.text is not None else _ids(body.input_ids, body.input_embeds)
    sampling = body.sampling_params or _Sampling()
    each = sampling if isinstance(sampling, list) else [sampling]
    samples = {1 if one.n is None else one.n for one in each}
    if len(samples) != 1:
        raise BadRequest(f"sampling_params: every prompt of a batch must ask for the same n, not {samples}")
    limits = [_limit("max_new_tokens", one.max_new_tokens) for one in each]
    wanted, starts = body.return_logprob, body.logprob_start_len or 0
    if min(starts if isinstance(starts, list) else [starts], default=0) < -1:  # would end SGLang's scheduler
        raise BadRequest(f"logprob_start_len is {starts}: must be from -1", param="logprob_start_len")
    return Body(
        endpoint=Endpoint.GENERATE,
        raw=raw,
        prompts=prompts,
        model=body.model,
        batched=batched,
        samples=_samples(samples.pop()),
        stream=bool(body.stream),
        rid=body.rid or None,
        max_new_tokens=max((limit for limit in limits if limit is not None), default=None),
        ignore_eos=any(one.ignore_eos for one in each),
        input_logprobs=(any(wanted) if isinstance(wanted, list) else bool(wanted))
        and body.logprob_start_len not in (None, -1),
        priority=_priority(body.priority),
    )


def _completion(raw: bytes) -> Body:
    body = _decode_completion(raw)
    if not _present(body.prompt):
        raise BadRequest("missing prompt: a string, a list of strings, or token ids", param="prompt")
    start = bytes(body.prompt).lstrip()[:1]
    inner = bytes(body.prompt).lstrip()[1:].lstrip()[:1]
    textual = start == b'"' or inner == b'"'
    if textual:
        try:
            batched, prompts = _text(_decode_text(body.prompt))
        except msgspec.ValidationError as error:
            raise BadRequest(f"invalid prompt: {error}", param="prompt") from error
    else:
        batched, prompts = _ids(body.prompt, msgspec.Raw(), "prompt")
    return Body(
        endpoint=Endpoint.COMPLETIONS,
        raw=raw,
        prompts=prompts,
        model=body.model,
        batched=batched,
        samples=_samples(body.n),
        stream=bool(body.stream),
        rid=body.rid or None,
        max_new_tokens=_limit("max_tokens", body.max_tokens),
        ignore_eos=bool(body.ignore_eos),
        input_logprobs=bool(body.echo) and body.logprobs not in (None, False),
        priority=_priority(body.priority),
    )


def _chat(raw: bytes) -> Body:
    body = _decode_chat(raw)
    messages = bytes(body.messages)
    if not _present(body.messages) or messages[1:].lstrip()[:1] == b"]":
        raise BadRequest("missing messages: a list of at least one message", param="messages")
    if messages[:1] != b"[":
        raise BadRequest("messages is not a list", param="messages")
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    return Body(
        endpoint=Endpoint.CHAT,
        raw=raw,
        prompts=(messages,),
        model=body.model,
        samples=_samples(body.n),
        stream=bool(body.stream),
        rid=body.rid or None,
        max_new_tokens=_limit("max_tokens", limit),
        ignore_eos=bool(body.ignore_eos),
        priority=_priority(body.priority),
    )


def _present(value: msgspec.Raw) -> bool:
    return bytes(value) not in (b"", b"null")


def _text(text: str | list[str]) -> tuple[bool, tuple[Ids | bytes, ...]]:
    if not text or ("" in text and not isinstance(text, str)):
        raise BadRequest("a prompt is empty: at least one token is needed")  # it would end SGLang's scheduler
    if isinstance(text, str):
        return False, (text.encode(),)
    return True, tuple(one.encode() for one in text)


def _ids(
    value: msgspec.Raw, embeds: msgspec.Raw, name: str = "input_ids"
) -> tuple[bool, tuple[Ids | bytes, ...]]:
    if not _present(value):
        return False, (bytes(embeds),)
    nested = bytes(value).lstrip()[1:].lstrip()[:1] == b"["
    try:
        lists: Sequence[list[int]] = _decode_id_lists(value) if nested else [_decode_ids(value)]
    except msgspec.ValidationError as error:
        raise BadRequest(f"invalid {name}: {error}", param=name) from error
    if not lists or not all(lists):
        raise BadRequest(f"{name} is empty: at least one token is needed", param=name)
    return nested, tuple(tuple(one) for one in lists)


def _limit(name: str, value: int | None) -> int | None:
    if value is not None and not 0 <= value <= MAX_TOKENS:
        raise BadRequest(f"{name} is {value}: must be from 0 to {MAX_TOKENS}", param=name)
    return value


def _priority(value: int | None) -> int:
    if value is not None and abs(value) > MAX_TOKENS:
        raise BadRequest(f"priority is {value}: must be within +-{MAX_TOKENS}", param="priority")
    return value or 0


def _samples(value: int | None) -> int:
    if value is not None and not 1 <= value <= MAX_SAMPLES:
        raise BadRequest(f"n is {value}: must be from 1 to {MAX_SAMPLES}", param="n")
    return value or 1

"""What `kvferry probe run` and an agent tell each other, as JSON.

    GET    /v1/agent                          Described
    POST   /v1/sessions            Open    -> Opened
    POST   /v1/sessions/{id}/peers Connect -> Connected
    POST   /v1/sessions/{id}/moves Moves   -> Line, one a move, in the order in which they ended
    POST   /v1/sessions/{id}/awake            no end: until the client leaves, moves are expected
    DELETE /v1/sessions/{id}?settled=1        nothing; `settled`: no move can still write here

An error is {"error": {message, type, param, code}}; among the lines of moves it is the last line.
"""

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(gt=0, le=2**62)]
Seconds = Annotated[float, msgspec.Meta(gt=0.0, le=3600.0)]
Took = Annotated[float, msgspec.Meta(ge=0.0, le=3600.0)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
HostName = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]  # as the store takes it


class Described(msgspec.Struct, frozen=True):
    """`host_id` is one for all processes under one kernel. `transports`: why one does not load, "" where it
    does. `versions`: of kvferry, Python, and the libraries that are installed. `agent_id`: another one for
    every agent that was started."""

    name: HostName
    host_id: str
    cores: int
    memory_bytes: int
    gpus: tuple[str, ...]
    rdma_devices: tuple[str, ...]
    transports: dict[str, str]
    versions: dict[str, str]
    agent_id: str = ""


class Open(msgspec.Struct, frozen=True):
    """`device`: "cpu" or "cuda:0"."""

    transport: str
    nbytes: Count
    device: str = "cpu"


class Opened(msgspec.Struct, frozen=True):
    """`metadata` is what the peer's transport needs."""

    session: str
    metadata: bytes
    registration_s: Took
    registration_s_per_byte: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class Connect(msgspec.Struct, frozen=True):
    """The peer's `Opened.metadata`, and a name for it."""

    name: Name
    metadata: bytes
    deadline_s: Seconds


class Connected(msgspec.Struct, frozen=True):
    """See `Measured.first_contact_s`."""

    first_contact_s: Took


class Wanted(msgspec.Struct, frozen=True, array_like=True):
    """With `concurrency` above 1: that many moves under way at any time, each told."""

    moved_bytes: Count
    descriptors: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 1
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=16)] = 1


class Moves(msgspec.Struct, frozen=True):
    """`deadline_s` is that of each move."""

    peer: Name
    moves: Annotated[tuple[Wanted, ...], msgspec.Meta(min_length=1, max_length=4096)]
    deadline_s: Seconds


class Moved(msgspec.Struct, frozen=True):
    """A `Sample` on the wire."""

    moved_bytes: Count
    descriptors: Count
    total_s: Seconds
    concurrency: Count


class ErrorBody(msgspec.Struct, frozen=True):
    message: str
    type: str = "server_error"
    param: str | None = None
    code: str | None = None


class Failure(msgspec.Struct, frozen=True):
    """OpenAI's shape."""

    error: ErrorBody


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of the two; `error` ends the moves."""

    moved: Moved | None = None
    error: ErrorBody | None = None

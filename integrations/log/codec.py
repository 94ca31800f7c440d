"""Records to bytes and back."""

import msgspec

from kvferry.integrations.log.record import SCHEMA, DecisionRecord, Outcome

_encoder = msgspec.json.Encoder()
_records = msgspec.json.Decoder(DecisionRecord)
_outcomes = msgspec.json.Decoder(Outcome)


class RecordError(ValueError):
    """Bytes that are not a record of a version we know; the message is one line."""


class _Head(msgspec.Struct):
    schema: object = None


_heads = msgspec.json.Decoder(_Head)


def write_record(record: DecisionRecord) -> bytes:
    """One line of JSON, without its newline; the same record always gives the same bytes."""
    return _encoder.encode(record)


def read_record(line: bytes | str) -> DecisionRecord:
    """The record in one line of JSON. Raises RecordError on a foreign schema or a broken line."""
    try:
        return _records.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError(_why(line, error)) from None


def write_outcome(outcome: Outcome) -> bytes:
    return _encoder.encode(outcome)


def read_outcome(line: bytes | str) -> Outcome:
    """Raises RecordError when the line is no outcome."""
    try:
        return _outcomes.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError(f"not an outcome: {error}") from None


def _why(line: bytes | str, error: Exception) -> str:
    try:
        schema = _heads.decode(line).schema
    except (msgspec.DecodeError, UnicodeDecodeError):
        return f"not a JSON record: {error}"
    if schema is None:
        return f"no schema, expected '{SCHEMA}'"
    if schema != SCHEMA:
        return f"schema {schema!r} is not '{SCHEMA}', the one this kvferry reads"
    return f"broken {SCHEMA} record: {error}"

"""Reading KV events: real bytes of a real worker, the elder's encoding, and what cannot be read."""

import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.integrations.sglang.kvevents_feed import SLICE, Feed, Step
from kvferry.integrations.sglang.kvevents_message import BlockStored, decode
from kvferry.integrations.sglang.kvevents_source import Source, sources_of
from kvferry.models.kv_blocks import HeldBlocks
from kvferry.models.prefix import block_hashes
from kvferry.models.prefix_keys import PrefixKeys

GOLDEN = Path(__file__).parent / "golden"
pack = msgspec.msgpack.Encoder().encode


def keys(prompt: Any) -> PrefixKeys:
    return PrefixKeys(tuple(prompt), block_hashes(prompt))


def stored(hashes: list[int], tokens: list[Any], parent: int | None = None, **fields: Any) -> dict[str, Any]:
    size = len(tokens) // len(hashes)
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": size,
        **fields,
    }


def batch(*events: Any, ts: float = 1.0) -> bytes:
    return pack([ts, list(events), 0])


def feed(page: int = 2, **fields: Any) -> Feed:
    return Feed(HeldBlocks(page, **fields))


def take(into: Feed, *payloads: bytes) -> None:
    for payload in payloads:
        for _ in into.apply(into.next_seq, decode(payload), now_s=2.0):
            pass


@pytest.mark.parametrize("page", [1, 16])
def test_what_a_real_worker_published_gives_the_hits_that_it_reported(page: int) -> None:
    golden = json.loads((GOLDEN / f"kv_events_page_{page}.json").read_text())
    (source,) = sources_of("http://10.0.0.1:30000", golden)
    assert source.page_tokens == page
    followed = feed(source.page_tokens)
    messages = [base64.b64decode(text) for text in golden["messages"]]
    for request in golden["requests"]:
        take(followed, *messages[followed.next_seq : request["after"]])
        assert followed.blocks.held(keys(request["input_ids"])) == request["cached_tokens"]
    take(followed, *messages[followed.next_seq :])
    assert followed.partial == ""
    assert (followed.batches, followed.undecodable, followed.blocks.orphans) == (len(messages), 0, 0)
    assert sum(request["cached_tokens"] for request in golden["requests"]) > 500


def test_events_as_arrays_mean_the_same() -> None:
    new = decode(batch(stored([1, 2], [5, 6, 7, 8], medium="GPU"), {"type": "AllBlocksCleared"}))
    old = decode(batch(["BlockStored", [1, 2], None, [5, 6, 7, 8], 2, None, "GPU"], ["AllBlocksCleared"]))
    assert old == new
    removed = {"type": "BlockRemoved", "block_hashes": [3]}
    assert decode(batch(removed)) == decode(batch(["BlockRemoved", [3]]))


def test_fields_that_are_not_known_yet_are_passed_over() -> None:
    event = stored([1], [5, 6], session_id="s", group_idx=3, medium="GPU")
    assert (
        decode(pack([1.5, [event], 0, "more"])).events
        == decode(batch(stored([1], [5, 6], medium="GPU"))).events
    )


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", pack([1.0]), pack({"ts": 1}), batch({"type": "Moved"}), batch([]), batch(["Moved"])],
)
def test_what_is_no_batch_is_refused(payload: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(payload)


def test_bigrams_count_by_their_first_tokens() -> None:
    followed = feed()
    take(followed, batch(stored([1, 2], [(5, 6), (6, 7), (7, 8), (8, 9)])))
    assert followed.blocks.held(keys([5, 6, 7, 8, 9])) == 4


@pytest.mark.parametrize("medium", ["CPU_PINNED", "DISK", "EXTERNAL"])
def test_only_the_gpus_blocks_are_held(medium: str) -> None:
    followed = feed()
    take(followed, batch(stored([1], [5, 6], medium="GPU"), stored([2], [7, 8], parent=1, medium=medium)))
    assert followed.blocks.held(keys([5, 6, 7, 8, 9])) == 2
    take(followed, batch({"type": "BlockRemoved", "block_hashes": [1], "medium": medium}))
    assert followed.blocks.held(keys([5, 6, 7, 8, 9])) == 2
    take(followed, batch({"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU"}))
    assert followed.blocks.held(keys([5, 6, 7, 8, 9])) == 0


@pytest.mark.parametrize("field", [{"lora_id": 1}, {"lora_name": "a"}, {"cache_salt": "s"}])
def test_blocks_of_an_adapter_or_a_salt_are_kept_apart(field: dict[str, Any]) -> None:
    followed = feed()
    take(followed, batch(stored([1], [5, 6], **field), stored([2], [7, 8], parent=1, **field)))
    assert followed.blocks.held(keys([5, 6, 7, 8, 9])) == 0
    assert len(followed.blocks) == 2


def test_a_stream_from_its_beginning_is_whole_and_a_later_one_until_a_flush() -> None:
    followed = feed()
    assert followed.partial
    take(followed, batch(stored([1], [5, 6])))
    assert followed.partial == ""
    late = feed()
    assert late.sort(7, ts=1.0) is Step.GAP
    late.lose(7)
    take(late, batch(stored([2], [7, 8], parent=1), stored([3], [1, 2])))
    assert late.partial
    assert (late.blocks.orphans, late.gaps, late.blocks.held(keys([1, 2, 3]))) == (1, 1, 2)
    take(late, batch({"type": "AllBlocksCleared"}))
    assert (late.partial, late.blocks.held(keys([1, 2, 3]))) == ("", 0)


def test_numbers_tell_what_was_seen_what_is_missing_and_a_new_publisher() -> None:
    followed = feed()
    take(followed, batch(ts=10.0), batch(ts=11.0))
    assert followed.sort(2, 12.0) is Step.NEXT
    assert followed.sort(1, 11.0) is Step.OLD
    assert followed.sort(0, 10.0) is Step.OLD
    assert followed.sort(3, 12.0) is Step.GAP
    assert followed.sort(0, 20.0) is Step.RESTART
    followed.restart()
    assert followed.sort(0, 20.0) is Step.NEXT


@pytest.mark.parametrize("tokens", [[5, 6, 7], [5, -(1 << 63), 1 << 63, 8]])
def test_an_event_that_makes_no_sense_forgets_all_and_ends_nothing(tokens: list[int]) -> None:
    followed = feed()
    broken = stored([2, 3], [0, 0, 0, 0], parent=1) | {"token_ids": tokens}
    take(followed, batch(stored([1], [1, 2])), batch(broken, stored([4], [3, 4])))
    assert followed.undecodable == 1
    assert followed.partial
    assert followed.last_error
    assert followed.blocks.held(keys([1, 2, 9])) == 0
    assert followed.blocks.held(keys([3, 4, 9])) == 2
    assert followed.next_seq == 2


def test_beyond_its_limit_it_says_that_it_does_not_know_all() -> None:
    followed = feed(limit=2)
    take(followed, batch(stored([1, 2], [5, 6, 7, 8])))
    assert followed.partial == ""
    take(followed, batch(stored([3], [9, 9], parent=2)))
    assert "2 blocks" in followed.partial
    take(followed, batch({"type": "AllBlocksCleared"}))
    assert followed.partial == ""


def test_a_long_event_is_taken_in_slices() -> None:
    count = 3 * SLICE + 5
    followed, tokens = feed(page=1), list(range(count))
    breaths = sum(1 for _ in followed.apply(0, decode(batch(stored(list(range(1, count + 1)), tokens))), 2.0))
    assert breaths == 4
    assert followed.blocks.held(keys([*tokens, 0])) == count


@given(st.binary(max_size=64))
def test_no_bytes_are_fatal(payload: bytes) -> None:
    try:
        decoded = decode(payload)
    except msgspec.DecodeError:
        return
    assert all(event is not None for event in decoded.events)


TOLD = {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "topic": "t", "block_size": 16}


def test_sources_are_found_on_the_workers_host_one_for_each_rank() -> None:
    info = {"kv_events": TOLD | {"dp_size": 2, "replay_endpoint_port_base": 5600}}
    assert sources_of("http://[fd00::1]:30000", info) == (
        Source("tcp://[fd00::1]:5557", "tcp://[fd00::1]:5600", b"t", 16),
        Source("tcp://[fd00::1]:5558", "tcp://[fd00::1]:5601", b"t", 16),
    )
    assert sources_of("http://w:1", {"kv_events": TOLD | {"endpoint_host": "10.1.1.1"}}) == (
        Source("tcp://10.1.1.1:5557", "", b"t", 16),
    )
    for nothing in ({}, {"kv_events": None}, {"kv_events": {"publisher": "null"}}):
        assert sources_of("http://w:1", nothing) == ()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("endpoint_host", "no host"),
        ("endpoint_host", "10.0.0.1/24"),
        ("endpoint_host", "w\0"),
        ("endpoint_host", "é"),
        ("endpoint_host", "x" * 5000),
        ("endpoint_port_base", 0),
        ("endpoint_port_base", "5"),
        ("block_size", 0),
        ("dp_size", 10**6),
        ("dp_size", True),
    ],
)
def test_a_source_that_makes_no_sense_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        sources_of("http://w:1", {"kv_events": TOLD | {field: value}})


def test_an_event_tells_its_namespace() -> None:
    assert BlockStored([1], None, [1], 1).namespace == ""
    assert BlockStored([1], None, [1], 1, lora_name="a").namespace

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.integrations.transports.base import Batch, Region
from kvferry.integrations.transports.errors import BadRange, Missing, PeerGone, Refused
from kvferry.integrations.transports.local import Local
from kvferry.integrations.transports.metadata import PeerMetadata, RegionMetadata, decode, encode
from kvferry.integrations.transports.move import cut
from kvferry.integrations.transports.quarantine import Quarantine
from kvferry.integrations.transports.ranges import Ranges
from kvferry.integrations.transports.registry import names, open_transport

METADATA = PeerMetadata("local", "a-1", "session", b"blob", (RegionMetadata(4096, 64, "cpu", 0, ("/x", 8)),))


def batch_of(nbytes):
    sizes = np.array(nbytes, np.int64)
    starts = np.cumsum(sizes) - sizes
    return Batch(starts + 1, starts[::-1] * 3 + 7, sizes)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=60), st.integers(1, 9), st.integers(1, 300))
def test_parts_are_the_batch_byte_for_byte_and_each_within_its_limits(nbytes, most, most_bytes):
    batch = batch_of(nbytes)
    parts = cut(batch, most, most_bytes)
    assert [pair for part in parts for pair in pairs(part)] == pairs(batch)
    for part, after in zip(parts, [*parts[1:], None], strict=True):
        assert 1 <= len(part) <= most
        assert part.moved_bytes <= most_bytes
        if after is not None:  # no part ends early
            assert len(part) == most or part.moved_bytes + int(after.nbytes[0]) > most_bytes
    assert sum(map(len, parts)) == sum(-(-size // most_bytes) for size in nbytes)


def pairs(batch):
    """Where every byte comes from and goes to."""
    each = zip(batch.src_addresses.tolist(), batch.dst_addresses.tolist(), batch.nbytes.tolist(), strict=True)
    return [(source + at, target + at) for source, target, size in each for at in range(size)]


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 30)), min_size=1, max_size=6),
    st.integers(-20, 260),
    st.integers(-3, 60),
)
def test_a_range_is_found_exactly_where_one_region_holds_all_of_it(shape, address, nbytes):
    regions, at = [], 1
    for gap, size in shape:
        regions.append(Region(at + gap, size))
        at += gap + size
    ranges = Ranges(tuple(reversed(regions)))
    holding = [
        index
        for index, region in enumerate(reversed(regions))
        if nbytes > 0 and region.address <= address and address + nbytes <= region.end
    ]
    asked = np.array([address], np.int64), np.array([nbytes], np.int64)
    if holding:
        assert ranges.find("source", *asked).tolist() == holding
    else:
        with pytest.raises(BadRange):
            ranges.find("source", *asked)


def test_an_address_near_the_top_does_not_wrap():
    ranges = Ranges((Region(4096, 4096),))
    with pytest.raises(BadRange, match="descriptor 1"):
        ranges.find("destination", np.array([4096, 4097]), np.array([1, 2**63 - 1]))


def test_regions_that_overlap_or_differ_in_kind_are_refused():
    with pytest.raises(Refused, match="overlap"):
        Ranges((Region(100, 10), Region(109, 5)))
    with pytest.raises(Refused, match="kind"):
        Ranges((Region(100, 10), Region(200, 5, "cuda")))
    with pytest.raises(Refused, match="nothing"):
        Ranges(())


def test_metadata_comes_back_as_it_was():
    assert decode(encode(METADATA), "local") == METADATA


@given(st.integers(0, 200), st.integers(1, 255))
def test_any_damaged_byte_of_the_metadata_is_found(place, change):
    damaged = bytearray(encode(METADATA))
    damaged[place % len(damaged)] ^= change
    with pytest.raises(Refused):
        decode(bytes(damaged), "local")


@given(st.binary(max_size=80))
def test_bytes_that_are_no_metadata_are_refused(noise):
    with pytest.raises(Refused):
        decode(noise, "local")


def test_metadata_that_does_not_hold_is_refused():
    with pytest.raises(Refused, match="wanted nixl"):
        decode(encode(METADATA), "nixl")
    too_far = PeerMetadata("local", "a", "", b"", (RegionMetadata(2**62, 2**62, "cpu", 0),))
    with pytest.raises(Refused, match="not a region"):
        decode(encode(too_far), "local")
    with pytest.raises(Refused, match="another version"):
        decode(b"kvT\x02" + encode(METADATA)[4:], "local")


pages = st.frozensets(st.integers(0, 12), max_size=6)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("hold"), st.sampled_from("abc"), pages, st.floats(0, 9)),
            st.tuples(st.just("acknowledge"), st.sampled_from("abc")),
            st.tuples(st.just("pass"), st.floats(0, 5)),
        ),
        max_size=20,
    )
)
def test_a_page_is_held_exactly_while_a_move_that_may_write_it_is(steps):
    quarantine, now_s = Quarantine(), 0.0
    holds: dict[str, tuple[frozenset[int], float]] = {}
    for step in steps:
        before = quarantine.held
        freed = frozenset()
        match step:
            case ("hold", move, held, timeout_s):
                quarantine.hold(move, held, now_s=now_s, timeout_s=timeout_s)
                old = holds.get(move, (frozenset(), now_s))
                holds[move] = (old[0] | held, max(old[1], now_s + timeout_s))
                before |= held
            case ("acknowledge", move):
                freed = quarantine.acknowledge(move)
                holds.pop(move, None)
            case ("pass", passed_s):
                now_s += passed_s
                freed = quarantine.expire(now_s)
                holds = {move: hold for move, hold in holds.items() if hold[1] > now_s}
        assert quarantine.held == frozenset().union(*(held for held, _ in holds.values()))
        assert freed == before - quarantine.held


@pytest.mark.parametrize(("name", "module"), [("mooncake", "mooncake.engine"), ("nixl", "nixl._api")])
def test_a_missing_library_says_in_one_line_what_to_install(name, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(Missing, match="pip install") as raised:
        open_transport(name, "a")
    assert "\n" not in str(raised.value)


def test_an_unknown_transport_names_those_there_are():
    with pytest.raises(Refused, match=", ".join(names())):
        open_transport("carrier-pigeon", "a")


class Stumbles(Local):
    """Its library is taken away, where that is asked for, while it meets a peer."""

    def __init__(self, closes: bool) -> None:
        super().__init__("stumbles")
        self._closes = closes

    def _connect(self, peer):
        if self._closes:
            self.close()
        raise PeerGone("what it had is None")


@pytest.mark.parametrize(("closes", "error", "why"), [(True, Refused, "closed"), (False, PeerGone, "None")])
def test_who_connects_while_the_transport_is_closed_hears_of_that(closes, error, why):
    memory = np.zeros(64, np.uint8)
    transport = Stumbles(closes)
    metadata = transport.register((Region(memory.ctypes.data, memory.size),))
    with pytest.raises(error, match=why):
        transport.connect("peer", metadata)
    transport.close()

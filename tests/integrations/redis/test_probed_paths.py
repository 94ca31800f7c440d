"""Probed paths in the store: routers hear of each, and nothing that stands there can hurt them."""

import asyncio
import json
import logging
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.integrations.redis.connection import open_store
from kvferry.integrations.redis.health import Health
from kvferry.integrations.redis.path_record import MOST_BYTES, decode, encode
from kvferry.integrations.redis.paths import MOST_PATHS, PathBoard, PathFollower
from kvferry.models.paths.curve import Curve
from kvferry.models.paths.fit import Fit
from kvferry.models.paths.probed import Probed

PATH = Probed(
    ("cpu-2", "10.0.0.2"), ("cpu-5",), "mooncake", Fit(Curve(80e-6, 1 / 2.2e9, 3e-6), 0.05, 0.2, 1.0, 90),
    "tcp_25g", True, "as tcp_25g", 1e-10, 4e-3, 1e9, 1e9 + 5,
)  # fmt: skip
TWO_REGIMES = replace(
    PATH,
    transport="nixl",
    fitted=Fit(Curve(1e-5, 1e-10, 0.0, 2e7, 1e-3, 1e-9, 1e-6, overlapped=True), 0.1, 0.4, None, 60),
    met=False,
)
FIELD = b"cpu-2\x1fcpu-5\x1fmooncake"


def without(key: str) -> bytes:
    return json.dumps({k: v for k, v in json.loads(encode(PATH)).items() if k != key}).encode()


def changed(**values: Any) -> bytes:
    return json.dumps({**json.loads(encode(PATH)), **values}).encode()


# The first bytes may seem to cost nothing, behind a shaper that lets them through.
FREE_AT_FIRST = replace(
    TWO_REGIMES, fitted=replace(TWO_REGIMES.fitted, curve=replace(TWO_REGIMES.fitted.curve, s_per_byte=0.0))
)


@pytest.mark.parametrize("path", [PATH, TWO_REGIMES, FREE_AT_FIRST])
def test_what_is_written_is_read_again(path: Probed) -> None:
    assert decode(encode(path)) == path


@pytest.mark.parametrize(
    "told",
    [
        b"", b"null", b"[]", b"\xff", without("alpha_s"), without("v"), changed(v=2), changed(more=1),
        changed(alpha_s=-1e-6), changed(alpha_s="1"), changed(s_per_byte=0), changed(s_per_byte=1e300),
        changed(s_per_byte=6e-309), changed(s_per_byte=1e-17),
        changed(split_bytes=1e6, late_s_per_byte=0), changed(src_hosts=[]), changed(src_hosts=[""]),
        changed(dst_hosts=["h"] * 17), changed(transport="t" * 201), changed(met="yes"), changed(moves=-1),
        changed(verdict="v" * 1001), changed(seen_s=1e12), changed(first_contact_s=1e7),
        encode(PATH).replace(b"4e-6", b"NaN").replace(b"0.05", b"Infinity"), b" " * MOST_BYTES + encode(PATH),
    ],
)  # fmt: skip
def test_what_is_no_path_is_refused(told: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(told)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_whatever_bytes_there_are_nothing_but_a_value_error_comes_of_it(told: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(told)


@pytest.mark.parametrize(
    "bad", [{"src_hosts": ("x" * 300,)}, {"fitted": replace(PATH.fitted, curve=Curve(math.inf, 1e-9, 0.0))}]
)
def test_what_routers_would_not_read_is_not_written(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        encode(replace(PATH, **bad))


async def test_a_later_probe_takes_the_place_of_an_earlier_one(store: Any) -> None:
    said: list[str] = []
    board = PathBoard(store, lambda field, what: said.append(what))
    assert await board.read() == []
    await board.write([])
    first = await board.revision()
    await board.write([PATH, TWO_REGIMES])
    assert await board.revision() != first
    later = replace(PATH, seen_s=2e9, met=False)
    await board.write([later])
    assert sorted(await board.read(), key=lambda one: one.transport) == [later, TWO_REGIMES]
    assert said == []


async def test_a_router_hears_of_paths_and_of_their_changes(store: Any, eventually: Any) -> None:
    heard: list[list[Probed]] = []
    follower = PathFollower(store, heard.append, health=Health("s"), interval_s=0.01)
    follower.start()
    board = PathBoard(store, print)
    await board.write([PATH])
    await eventually(lambda: heard and heard[-1] == [PATH])
    later = replace(PATH, seen_s=2e9)
    await board.write([later])
    await eventually(lambda: heard[-1] == [later])
    count = len(heard)
    await board.write([later])  # nothing new
    await asyncio.sleep(0.1)
    assert len(heard) == count
    await follower.close()


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        (FIELD, b"{}", "required field"),
        (FIELD, b"x" * (MOST_BYTES + 1), "more than"),
        (b"cpu-5\x1fcpu-2\x1fmooncake", encode(PATH), "another path"),
        (b"\xff\x00", b"1", "Expected"),
    ],
)
async def test_one_bad_field_hides_no_other(
    store: Any, caplog: Any, field: bytes, value: bytes, word: str
) -> None:
    heard: list[list[Probed]] = []
    follower = PathFollower(store, heard.append, health=Health("s"), interval_s=0.01)
    await PathBoard(store, print).write([TWO_REGIMES])
    await store.client.hset(store.keys.paths, field, value)
    for _ in range(3):
        await store.client.incr(store.keys.paths_revision)
        await follower.refresh()
    assert heard == [[TWO_REGIMES]]
    (line,) = [record.message for record in caplog.records if "passing over" in record.message]
    assert word in line


async def test_too_many_paths_are_not_read(store: Any) -> None:
    said: list[str] = []
    await store.client.hset(store.keys.paths, mapping={f"{place}": b"x" for place in range(MOST_PATHS + 1)})
    assert await PathBoard(store, lambda field, what: said.append(what)).read() == []
    assert "more than" in said[0]


async def test_a_lost_store_leaves_what_was_told_last(own_server: Any, eventually: Any) -> None:
    store, heard, health = await open_store(own_server.url), list[list[Probed]](), Health("s")
    await PathBoard(store, print).write([PATH])
    follower = PathFollower(store, heard.append, health=health, interval_s=0.01)
    follower.start()
    await eventually(lambda: heard == [[PATH]])
    own_server.kill()
    await eventually(lambda: not health.up)
    assert heard == [[PATH]]
    own_server.start()
    await eventually(lambda: health.up)
    await PathBoard(store, print).write([TWO_REGIMES])
    await eventually(lambda: len(heard[-1]) == 2)
    await follower.close()
    await store.close()


async def test_a_store_that_refuses_is_said_once(store: Any, eventually: Any, caplog: Any) -> None:
    caplog.set_level(logging.ERROR)
    await store.client.set(store.keys.paths, "no hash")
    follower = PathFollower(store, print, health=Health("s"), interval_s=0.01)
    for _ in range(3):
        await follower._step()
    assert [record.message for record in caplog.records if "cannot be read" in record.message] != []
    assert len(caplog.records) == 1

"""How a client's body field reaches the scheduler."""

from types import SimpleNamespace as Some
from typing import Any

import pytest

from kvferry.integrations.sglang.plugin.localprefill.marker import asks_local, is_local, translate
from kvferry.integrations.sglang.plugin.wire import LOCAL_MARK


def translated(body: Any, *, host: Any = None, room: Any = None) -> Any:
    request = Some(bootstrap_host=host, bootstrap_room=room)
    translate(None, request, Some(_json=body))
    return request.bootstrap_host


def test_the_field_becomes_the_host() -> None:
    assert translated({LOCAL_MARK: True}) == LOCAL_MARK
    assert translated({LOCAL_MARK: True}, room=[None, None]) == LOCAL_MARK


@pytest.mark.parametrize("room", [None, [], [None], [None, None]])
def test_no_room_is_none_however_it_is_said(room: Any) -> None:
    request = Some(bootstrap_host=None, bootstrap_room=room)
    translate(None, request, Some(_json={LOCAL_MARK: True}))
    assert asks_local(request)


@pytest.mark.parametrize("room", [None, 0, 7, [7], [7, None]])
@pytest.mark.parametrize("body", [None, {}, {LOCAL_MARK: True}])
def test_a_host_that_says_so_leaves_no_room(body: Any, room: Any) -> None:
    # a client's own room, in a body to which a router has added the rest
    request = Some(bootstrap_host=LOCAL_MARK, bootstrap_room=room)
    translate(None, request, Some(_json=body))
    assert asks_local(request)


@pytest.mark.parametrize("body", [{}, {LOCAL_MARK: False}, {LOCAL_MARK: 1}, {LOCAL_MARK: "true"}, [], None])
def test_nothing_else_does(body: Any) -> None:
    assert translated(body) is None


@pytest.mark.parametrize("room", [7, 0, [7, 8], [None, 8]])
def test_a_request_with_a_room_is_a_split_one(room: Any) -> None:
    assert translated({LOCAL_MARK: True}, host="10.0.0.1", room=room) == "10.0.0.1"


def test_calls_without_a_body_are_left_alone() -> None:
    request = Some(bootstrap_host=None, bootstrap_room=None)
    translate(None, request)
    translate(None, request, Some())
    translate(None, Some(), Some(_json={LOCAL_MARK: True}))  # an embedding request has no such fields
    assert request.bootstrap_host is None


def test_in_the_scheduler_host_and_missing_room_tell() -> None:
    assert asks_local(Some(bootstrap_host=LOCAL_MARK, bootstrap_room=None))
    assert not asks_local(Some(bootstrap_host=LOCAL_MARK, bootstrap_room=0))
    assert not asks_local(Some(bootstrap_host=None, bootstrap_room=None))
    assert not asks_local(Some(bootstrap_host="10.0.0.1", bootstrap_room=None))
    assert not is_local(Some())
    assert is_local(Some(kvferry_local=True))

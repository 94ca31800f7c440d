"""Roles: what every command makes of them, whatever came before."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.integrations.registry.roles import RoleError, Roles

VERSIONS = ("structured", "m-1", "m-2", "m-3")
versions = st.sampled_from(VERSIONS)
commands = st.one_of(
    st.builds(lambda v: lambda roles: roles.shadowed(v), st.one_of(st.just(""), versions)),
    st.builds(
        lambda v, share: lambda roles: roles.canaried(v, share),
        versions,
        st.sampled_from((0.05, 0.5, 0.0, 0.7, -1.0)),
    ),
    st.builds(lambda v: lambda roles: roles.promoted(v), versions),
    st.builds(lambda live: lambda roles: roles.rolled_back(live=live), st.booleans()),
    st.builds(lambda v: lambda roles: roles.without(v), st.sampled_from(VERSIONS[1:])),
)


def after(steps: list[Callable[[Roles], Roles]]) -> Roles:
    roles = Roles()
    for step in steps:
        with suppress(RoleError):
            roles = step(roles)
    return roles


@given(st.lists(commands, max_size=12))
def test_no_version_plays_two_roles_at_once(steps: list[Callable[[Roles], Roles]]) -> None:
    roles = after(steps)
    assert roles.live
    playing = [version for version in (roles.live, roles.canary, roles.shadow) if version]
    assert len(set(playing)) == len(playing)
    assert (roles.canary_share > 0.0) == bool(roles.canary)
    assert roles.canary_share <= 0.5


@given(st.lists(commands, max_size=12))
def test_rollbacks_end_without_a_learned_model(steps: list[Callable[[Roles], Roles]]) -> None:
    roles = after(steps)
    for _ in range(4):
        try:
            roles = roles.rolled_back()
        except RoleError:
            break
    assert roles.live == "structured"
    assert not roles.canary


@given(st.lists(commands, max_size=12), st.sampled_from(VERSIONS[1:]))
def test_a_version_that_is_no_good_plays_no_role(steps: list[Callable[[Roles], Roles]], version: str) -> None:
    roles = after(steps).without(version)
    assert version not in (roles.live, roles.canary, roles.shadow, roles.previous)


@given(st.lists(commands, max_size=12))
def test_the_store_gives_back_what_was_put_there(steps: list[Callable[[Roles], Roles]]) -> None:
    roles = after(steps)
    fields = {name.encode(): str(value).encode() for name, value in roles.plain().items()}
    assert Roles.of(fields) == roles


def test_a_rollback_ends_the_canary_first_and_then_takes_live_back() -> None:
    roles = Roles().promoted("m-1").promoted("m-2").canaried("m-3", 0.05)
    ended = roles.rolled_back()
    assert (ended.live, ended.canary) == ("m-2", "")
    back = ended.rolled_back()
    assert (back.live, back.previous) == ("m-1", "")
    assert roles.rolled_back(live=True) == back


def test_what_was_before_structured_comes_back() -> None:
    back = Roles().promoted("m-1").promoted("structured").rolled_back()
    assert (back.live, back.previous) == ("m-1", "")


def test_a_promoted_canary_is_no_canary_any_more() -> None:
    roles = Roles().canaried("m-1", 0.05).promoted("m-1")
    assert (roles.live, roles.canary, roles.canary_share, roles.previous) == ("m-1", "", 0.0, "structured")


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (lambda roles: roles.promoted("m-1"), "m-1 is live already"),
        (lambda roles: roles.canaried("m-1", 0.1), "m-1 is live: it decides already"),
        (lambda roles: roles.canaried("m-2", 0.6), "at most 50%: 0.6"),
        (lambda roles: roles.shadowed("m-1"), "m-1 is live: it decides already"),
        (lambda roles: roles.shadowed(""), "no shadow runs"),
        (lambda roles: Roles().rolled_back(), "nothing to roll back: structured is live"),
    ],
)
def test_what_makes_no_sense_is_refused(command: Callable[[Roles], Roles], told: str) -> None:
    with pytest.raises(RoleError, match=told):
        command(Roles().promoted("m-1"))


def test_fields_that_are_damaged_are_as_in_the_beginning() -> None:
    assert Roles.of({b"epoch": b"many", b"live": b"", b"canary_share": b"nan"}) == Roles()

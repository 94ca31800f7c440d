"""What a policy is, and the registry of them."""

import re
from collections.abc import Callable
from typing import Protocol, TypeVar

from kvferry.policy.cluster import Cluster
from kvferry.policy.decision import Decision
from kvferry.policy.request import Request


class Policy(Protocol):
    """Pure and synchronous: the same request, cluster and seed give the same decision."""

    @property
    def name(self) -> str:
        """The public name, with its parameters, as it stands in logs."""
        ...

    def decide(self, request: Request, cluster: Cluster) -> Decision:
        """Choose a plan. Raises NoPlanError, with a reason per plan, when there is none."""
        ...


P = TypeVar("P", bound=Policy)

_FACTORIES: dict[str, Callable[..., Policy]] = {}
_SPEC = re.compile(r"^(?P<name>[a-z_0-9]+)(?:\((?P<args>[^()]*)\))?$")


def register(name: str) -> Callable[[type[P]], type[P]]:
    """Class decorator: make a policy available under its public name."""

    def add(factory: type[P]) -> type[P]:
        _FACTORIES[name] = factory
        return factory

    return add


def names() -> list[str]:
    """The public names of all policies."""
    return sorted(_FACTORIES)


def make(spec: str) -> Policy:
    """A policy from `name` or `name(number, ...)`, such as `coin(0.5)`; ValueError says what is wrong."""
    match = _SPEC.match(spec.replace(" ", ""))
    if match is None or match["name"] not in _FACTORIES:
        raise ValueError(f"unknown policy {spec!r}: known are {', '.join(names())}")
    try:
        numbers = [float(text) for text in (match["args"] or "").split(",") if text]
        return _FACTORIES[match["name"]](*numbers)
    except (TypeError, ValueError) as error:
        raise ValueError(f"policy {spec!r}: {error}") from error

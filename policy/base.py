"""What a policy is, and the registry of them."""

import math
import re
from collections.abc import Callable
from inspect import signature
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
    return sorted(_registry())


def make(spec: str, *, explore: float | None = None) -> Policy:
    """A policy from `name` or `name(number, ...)`, such as `coin(0.5)`; ValueError says what is wrong.

    `explore`: the share of requests to learn from, for policies that explore and whose spec says nothing of
    it; None: their own default, which is not to.
    """
    match = _SPEC.match(spec.replace(" ", ""))
    registry = _registry()
    if match is None or match["name"] not in registry:
        raise ValueError(f"unknown policy {spec!r}: known are {', '.join(names())}")
    factory, args = registry[match["name"]], match["args"]
    takes = list(signature(factory).parameters)
    try:
        numbers = [float(text) for text in args.split(",")] if args else []
        if not all(math.isfinite(number) for number in numbers):
            raise ValueError("its parameters must be finite numbers")
        if len(numbers) > len(takes):
            raise ValueError(f"it takes at most {len(takes)} numbers, not {len(numbers)}")
        if explore is not None and "explore" in takes[len(numbers) :]:
            return factory(*numbers, explore=explore)
        return factory(*numbers)
    except ValueError as error:
        raise ValueError(f"policy {spec!r}: {error}") from error


def _registry() -> dict[str, Callable[..., Policy]]:
    # The variants import this module, so they are found here and not at the top.
    from kvferry.policy import baselines, conversations, expected_loss  # noqa: F401

    return _FACTORIES

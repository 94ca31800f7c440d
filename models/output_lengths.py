"""How long answers get: of a model, of a tenant's on it, and of those to one family of its prompts."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kvferry.models.lengths_told import MOST_BYTES, LengthsTold, Part
from kvferry.models.output_tokens import MOST_ANSWERS, Bin, OutputTokens

# Places kept per level, the least recently used forgotten first; and families seen once.
MOST_MODELS, MOST_TENANTS, MOST_FAMILIES = 64, 1024, 2048
MOST_NEW = 16_384
MOST_SUMS = 4096
LACKING = 0.05


class Place(NamedTuple):
    """A level's key: without tenant and family the model's, without family the tenant's."""

    model: str
    tenant: str = ""
    family: str = ""


@dataclass(slots=True)
class OutputLengths:
    """OutputTokens per model, (model, tenant) and (model, tenant, family), each drawn towards the one before
    it as PRIOR_ANSWERS answers, the first towards the prior.

    A family gets its place with its second answer: prompts that share no beginning with any other would push
    out those that do. Follows `kvferry.models.evidence.Evidence`; of its own, the places used last are told.
    """

    name: str = field(init=False, default="lengths")
    revision: int = field(init=False, default=0)
    _levels: tuple[OrderedDict[Place, OutputTokens], ...] = field(
        init=False, default_factory=lambda: (OrderedDict(), OrderedDict(), OrderedDict())
    )
    _new: OrderedDict[Place, None] = field(init=False, default_factory=OrderedDict)
    _told: dict[Place, Part] = field(init=False, default_factory=dict)
    _others: dict[str, dict[Place, Part]] = field(init=False, default_factory=dict)
    _shares: dict[str, float] = field(init=False, default_factory=dict)
    _sums: dict[Place, OutputTokens] = field(init=False, default_factory=dict)
    _lacking: dict[Place, int] = field(init=False, default_factory=dict)

    def observe(
        self, model: str, tokens: float, *, cut: bool = False, tenant: str = "", family: str = ""
    ) -> None:
        """An answer has ended; `cut`: not by itself (its limit, its client)."""
        for place in _places(model, tenant, family):
            if place.family and self._is_new(place):
                continue
            self._own(place).observe(tokens, cut=cut)
            self._told.pop(place, None)
            self._outdate(place)
        self.revision += 1

    def expect(
        self, model: str, max_new_tokens: float | None = None, tenant: str = "", family: str = ""
    ) -> tuple[float, float]:
        """(mean, 90th percentile) of an answer's tokens, neither under 1 nor over its limit."""
        expected: tuple[float, float] | None = None
        for place in _places(model, tenant, family):
            seen = self._sum(place)
            if seen is not None:
                expected = seen.expect(max_new_tokens, expected)
        return expected or OutputTokens().expect(max_new_tokens)

    def answers(self, model: str, tenant: str = "", family: str = "") -> float:
        """How many answers of now are known of a place."""
        place = Place(model, tenant, family)
        own = self._level(place).get(place)
        return (own.answers if own else 0.0) + sum(
            share * sum(ended + cut for _, ended, cut, _ in bins) for bins, share in self._heard(place)
        )

    def snapshot(self) -> bytes:
        parts, size = list[Part](), 0
        for place in self._newest():
            part = self._told.get(place)
            if part is None:
                part = self._told[place] = Part.of(place, self._level(place)[place].bins())
            size += part.size
            if size > MOST_BYTES:
                break
            parts.append(part)
        return LengthsTold.write(parts)

    def restore(self, told: bytes) -> None:
        for part in reversed(LengthsTold.read(told)):
            place = Place(*part.place)
            own = self._own(place)
            own.add(part.bins, 1.0 - min(1.0, own.answers / MOST_ANSWERS))  # those since then came after
            self._told.pop(place, None)
        self._forget_sums()

    def hear(self, router: str, told: bytes) -> None:
        self._others[router] = {Place(*part.place): part for part in LengthsTold.read(told)}
        self._shares.setdefault(router, 1.0)
        self._forget_sums()

    def weigh(self, router: str, share: float) -> None:
        if share <= 0.0:
            self._others.pop(router, None)
            self._shares.pop(router, None)
        elif self._shares.get(router, share) == share:
            return
        else:
            self._shares[router] = share
        self._forget_sums()

    def _forget_sums(self) -> None:
        self._sums.clear()
        self._lacking.clear()

    def _level(self, place: Place) -> OrderedDict[Place, OutputTokens]:
        return self._levels[2 if place.family else 1 if place.tenant else 0]

    def _own(self, place: Place) -> OutputTokens:
        level = self._level(place)
        found = level.setdefault(place, OutputTokens())
        level.move_to_end(place)
        for kept, most in zip(self._levels, (MOST_MODELS, MOST_TENANTS, MOST_FAMILIES), strict=True):
            while len(kept) > most:
                gone, _ = kept.popitem(last=False)
                self._told.pop(gone, None)
                self._sums.pop(gone, None)
                self._lacking.pop(gone, None)
        return found

    def _is_new(self, place: Place) -> bool:
        """Whether this family was never met before; it is from now on."""
        if place in self._levels[2] or any(place in of for of in self._others.values()):
            return False
        if place in self._new:
            del self._new[place]
            return False
        self._new[place] = None
        if len(self._new) > MOST_NEW:
            self._new.popitem(last=False)
        return True

    def _sum(self, place: Place) -> OutputTokens | None:
        """Own answers and those of other routers; None where there are none."""
        known = self._sums.get(place)
        if known is not None:
            return known
        own = self._level(place).get(place)
        others = list(self._heard(place))
        if not others:
            return own
        total = OutputTokens()
        if own is not None:
            total.add(own.bins())
        for bins, share in others:
            total.add(bins, share)
        if len(self._sums) >= MOST_SUMS:
            self._forget_sums()
        self._sums[place] = total
        return total

    def _heard(self, place: Place) -> Iterator[tuple[tuple[Bin, ...], float]]:
        for router, told in self._others.items():
            if place in told:
                yield told[place].bins, self._shares[router]

    def _outdate(self, place: Place) -> None:
        """A sum is made anew once it lacks more than a part of its answers."""
        known = self._sums.get(place)
        if known is not None:
            self._lacking[place] = lacking = self._lacking.get(place, 0) + 1
            if lacking > LACKING * known.answers:
                del self._sums[place], self._lacking[place]

    def _newest(self) -> Iterator[Place]:
        """All models, then the places used last of tenants and families in turn."""
        yield from reversed(self._levels[0])
        tenants, families = reversed(self._levels[1]), reversed(self._levels[2])
        while True:
            two = [place for place in (next(tenants, None), next(families, None)) if place is not None]
            if not two:
                return
            yield from two


def _places(model: str, tenant: str, family: str) -> Iterator[Place]:
    yield Place(model)
    if tenant:
        yield Place(model, tenant)
    if family:
        yield Place(model, tenant, family)

"""Who has seen what of the members of a term: this router, and others."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvferry.models.terms.evidence import Sums

Key = tuple[str, ...]

# What a change leaves of the evidence before it. Of what became ten times slower, an old sample weighs as
# much as a hundred new ones.
AFTER_CHANGE = 1e-4
# Few samples are soon tried again: their weight halves when there was none for so long per sample.
RETRY_S = 15.0
MOST_MEMBERS = 512
# Changes that routers saw within so long of each other are one.
SAME_CHANGE_S = 10.0


@dataclass(slots=True)
class Member:
    """`changed_s`: when it was last seen to have changed (0: never)."""

    sums: Sums
    changed_s: float = 0.0


@dataclass(slots=True, eq=False)
class Members:
    """Evidence by member, this router's `own` and that of others (`theirs`), with the share to which each of
    those still counts. All of it fades with `half_life_s`; of a member that has changed, AFTER_CHANGE of what
    was seen before that is left, whoever saw it.
    """

    size: int
    half_life_s: float
    own: dict[Key, Member] = field(default_factory=dict)
    theirs: dict[str, dict[Key, Member]] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.own or self.theirs)

    def add(self, key: Key, sample: Sums) -> None:
        """One more sample of its own."""
        member = self.own.get(key)
        if member is None:
            self._make_room()
            self.own[key] = Member(sample)
        else:
            member.sums = member.sums.plus(sample, self.half_life_s)

    def changed(self, key: Key, now_s: float) -> None:
        """What was known of it is of little use from now on."""
        member = self.own.get(key, Member(Sums.none(self.size)))
        self.own[key] = Member(member.sums.faded(now_s, self.half_life_s).times(AFTER_CHANGE), now_s)

    def evidence(self, key: Key, now_s: float) -> Member:
        """All that routers have seen of a member, as it weighs now."""
        mine = self.own.get(key)
        found = [] if mine is None else [(1.0, mine)]
        for router, members in self.theirs.items():
            if key in members:
                found.append((self.shares.get(router, 1.0), members[key]))
        if not found:
            return Member(Sums.none(self.size))
        changed_s = max(member.changed_s for _, member in found)
        total: Sums | None = None
        for share, member in found:
            counts = share if member.changed_s >= changed_s - SAME_CHANGE_S else share * AFTER_CHANGE
            sums = member.sums if counts == 1.0 else member.sums.times(counts)
            total = sums if total is None else total.plus(sums, self.half_life_s)
        assert total is not None
        idle_s = max(0.0, now_s - total.time_s)
        count = total.count * 2.0 ** (-idle_s / self.half_life_s)
        tried = 2.0 ** (-idle_s / self.half_life_s - idle_s / (RETRY_S * (1.0 + count)))
        return Member(total.times(tried), changed_s)

    def hear(self, router: str, members: dict[Key, Member]) -> None:
        """All that another router has seen, in place of what it told before."""
        self.theirs[router] = members
        self.shares.setdefault(router, 1.0)
        for key, member in members.items():
            mine = self.own.get(key)
            if mine is not None and mine.changed_s + SAME_CHANGE_S < member.changed_s:
                self.own[key] = Member(mine.sums.times(AFTER_CHANGE), member.changed_s)

    def weigh(self, router: str, share: float) -> None:
        """At 0 it is forgotten."""
        self.shares[router] = min(max(share, 0.0), 1.0)
        if not share > 0.0:
            self.theirs.pop(router, None)
            self.shares.pop(router, None)

    def restore(self, members: dict[Key, Member]) -> None:
        """From before a restart."""
        for key, member in itertools.islice(members.items(), MOST_MEMBERS):
            mine = self.own.get(key, Member(Sums.none(self.size)))
            changed_s = max(mine.changed_s, member.changed_s)
            before = member.sums if member.changed_s >= mine.changed_s else member.sums.times(AFTER_CHANGE)
            self.own[key] = Member(mine.sums.plus(before, self.half_life_s), changed_s)

    def known(self) -> Iterator[Key]:
        """Members of which anything was seen."""
        told = (members.keys() for members in self.theirs.values())
        return iter(dict.fromkeys(itertools.chain(self.own, *told)))

    def _make_room(self) -> None:
        while len(self.own) >= MOST_MEMBERS:
            del self.own[min(self.own, key=lambda key: self.own[key].sums.time_s)]

"""Hosts' names, short enough for a cell or an axis."""

from collections.abc import Iterable

MORE = "\u2026"


def shortened(names: Iterable[str], most: int) -> dict[str, str]:
    """Each name without the domain that all have in common, and of `most` characters where they still tell
    the names apart: its beginning goes first, for names of one cluster differ at their ends."""
    known = list(dict.fromkeys(names))
    parts = [name.split(".") for name in known]
    shared = 0
    if len(known) > 1 and not any(part[-1].isdigit() for part in parts):  # of addresses the end tells most
        fewest = min(map(len, parts))
        while shared < fewest - 1 and len({part[-1 - shared] for part in parts}) == 1:
            shared += 1
    whole = [".".join(part[: len(part) - shared]) for part in parts]
    longest = max(map(len, whole), default=0)
    for length in range(most, longest):
        cut = [name if len(name) <= length else f"{MORE}{name[1 - length :]}" for name in whole]
        if len(set(cut)) == len(set(whole)):
            return dict(zip(known, cut, strict=True))
    return dict(zip(known, whole, strict=True))

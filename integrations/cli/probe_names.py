"""Hosts' names, short enough for a cell or an axis."""

from collections.abc import Iterable

MORE = "\u2026"


def shortened(names: Iterable[str], most: int) -> dict[str, str]:
    """Each name without the domain that all have in common, and of `most` characters where they still tell
    the names apart: its beginning goes first, for names of one cluster differ at their ends, and an address
    has its port there."""
    known = list(dict.fromkeys(names))
    split = [_host_and_port(name) for name in known]
    hosts, ports = [host.split(".") for host, _ in split], [port for _, port in split]
    shared = 0
    if len(known) > 1 and not any(part[-1].isdigit() for part in hosts):  # of addresses the end tells most
        fewest = min(map(len, hosts))
        while shared < fewest - 1 and len({part[-1 - shared] for part in hosts}) == 1:
            shared += 1
    bare = [".".join(part[: len(part) - shared]) for part in hosts]
    whole = [f"{host}{port}" for host, port in zip(bare, ports, strict=True)]
    for length in range(most, max(map(len, whole), default=0)):
        for head in range(length - 1):
            cut = [_cut(name, head, length) for name in whole]
            if len(set(cut)) == len(set(whole)):
                return dict(zip(known, cut, strict=True))
    return dict(zip(known, whole, strict=True))


def _cut(name: str, head: int, length: int) -> str:
    return name if len(name) <= length else f"{name[:head]}{MORE}{name[head + 1 - length :]}"


def _host_and_port(name: str) -> tuple[str, str]:
    host, colon, port = name.rpartition(":")
    return (host, f":{port}") if colon and port.isdigit() else (name, "")

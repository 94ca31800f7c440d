"""Figures and names as people read them in a terminal."""

import time

from kvferry.integrations.log.record import NEVER_S, Chosen, DecisionRecord


def duration(seconds: float | None) -> str:
    """At most seven characters, "-" for None."""
    if seconds is None:
        return "-"
    if seconds >= NEVER_S:
        return "never"
    for unit, factor, digits in (("us", 1e6, 0), ("ms", 1e3, 1), ("ms", 1e3, 0), ("s", 1, 2), ("s", 1, 1)):
        value = seconds * factor
        if value < {"us": 1000, "ms": 1000, "s": 1e4}[unit] and len(f"{value:.{digits}f}") <= 4:
            return "0" if not seconds else f"{value:.{digits}f}{unit}"
    return f"{seconds:.0f}s"


def percent(share: float | None, *, signed: bool = False) -> str:
    """At most five characters, "-" for None."""
    if share is None:
        return "-"
    value = share * 100
    if abs(value) > 999:
        return (">" if value > 0 else "<-") + "999%"
    return f"{value:+.0f}%" if signed else f"{value:.0f}%"


def worker(name: str) -> str:
    """A worker without its scheme; on this host, its port."""
    short = name.removeprefix("http://").removeprefix("https://").rstrip("/")
    host, colon, port = short.rpartition(":")
    return port if colon and host in ("127.0.0.1", "localhost", "[::1]") else short


def plan(key: str, width: int = 80) -> str:
    """A plan's key, short: `colo 30000`, `split 30001>30002`; in few columns `split .1>.2`, or without its
    mode where the ports differ: `.1:30000>.2:30001`."""
    mode, _, rest = key.partition(":")
    if mode == "colocated":
        names, label = [worker(rest)], "colo "
    elif mode == "split" and ">" in rest:
        prefill, _, decode = rest.rpartition("@")[0].partition(">")
        names, label = [worker(prefill), worker(decode)], "split "
    else:
        return key
    long = label + ">".join(names)
    if len(long) <= width:
        return long
    ends = [name.rpartition(":") for name in names]
    hosts = [_initial(host) for host, _, _ in ends]
    if len({port for _, _, port in ends}) == 1 and len(names) > 1:
        return label + ">".join(hosts)
    tiny = ">".join(f"{host}:{port}" for host, (_, _, port) in zip(hosts, ends, strict=True))
    return label + tiny if len(label + tiny) <= width else tiny


def _initial(host: str) -> str:
    """Enough to tell the hosts of a cluster apart: the last number of an address, a name's first label."""
    if host.replace(".", "").isdigit():
        return "." + host.rpartition(".")[2]
    return host.partition(".")[0]


def chosen(choice: Chosen) -> str:
    """The chosen plan in full."""
    if choice.mode == "colocated":
        return f"colocated on {'decode worker ' if choice.on_decode else ''}{choice.decode}"
    return f"split: prefill {choice.prefill}, decode {choice.decode}, over {choice.transport}"


def clock(seconds: float, shape: str = "%H:%M:%S") -> str:
    """Local time, of day by default; "?" for a time that no calendar has."""
    try:
        return time.strftime(shape, time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return "?"


def status(record: DecisionRecord) -> str:
    """The measured TTFT, or why there is none; at most seven characters."""
    outcome = record.outcome
    if outcome is None:
        return "..."
    short = {"failed": "failed", "cancelled": "cancel", "rejected": "reject"}
    return short.get(outcome.status) or duration(outcome.ttft_s)

"""A network namespace at the other end of a wire whose rate the kernel holds down."""

import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

# What leaves at once after a pause: as little as still gives 95% of 200 Mbit/s and of 1 Gbit/s to one stream
# (the rest is headers), since no NIC sends the beginning of a move for nothing.
BURST = "32kb"
LATENCY = "400ms"  # of the bucket's queue: a full one drops, and TCP holds itself back


class NoWire(RuntimeError):
    """Namespaces, or shaping, are not to be had here; the message says why in one line."""


@dataclass(frozen=True, slots=True)
class Wire:
    """`device` has `address` in a `namespace` of its own; what it sends leaves at `mbit_per_s` at most, for
    `here`, this end, or any other address of this host."""

    namespace: str
    device: str
    address: str
    here: str
    mbit_per_s: float

    @property
    def prefix(self) -> list[str]:
        """What runs a command at the far end."""
        return ["ip", "netns", "exec", self.namespace]

    def limit(self, mbit_per_s: float, verb: str = "change") -> None:
        """From now on it has another rate than `mbit_per_s` says. Raises NoWire where it was not changed."""
        bucket = ("rate", f"{mbit_per_s:g}mbit", "burst", BURST, "latency", LATENCY)
        _run("tc", "-n", self.namespace, "qdisc", verb, "dev", self.device, "root", "tbf", *bucket)


@contextmanager
def shaped(mbit_per_s: float) -> Iterator[Wire]:
    """A wire for the length of a `with` block. Raises NoWire where that is not permitted."""
    if not (shutil.which("ip") and shutil.which("tc")):
        raise NoWire("ip and tc (iproute2) are not installed")
    tag = secrets.token_hex(3)
    base = f"10.213.{secrets.randbelow(256)}.{4 * secrets.randbelow(64)}"  # runs at once rarely meet
    here, there = (str(ip_address(base) + end) for end in (1, 2))
    near, far, name = f"kvf{tag}a", f"kvf{tag}b", f"kvf-{tag}"
    wire = Wire(name, far, there, here, mbit_per_s)
    _run("ip", "netns", "add", name)
    try:
        _run("ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", name)
        for where, device, address in ((), near, here), (("-n", name), far, wire.address):
            _run("ip", *where, "addr", "add", f"{address}/30", "dev", device)
            _run("ip", *where, "link", "set", device, "up")
        _run("ip", "-n", name, "link", "set", "lo", "up")
        _run("ip", "-n", name, "route", "add", "default", "via", here)
        wire.limit(mbit_per_s, "add")
        yield wire
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        if Path(f"/sys/class/net/{near}").exists():  # the namespace outlives its name while used
            subprocess.run(["ip", "link", "del", near], check=False, capture_output=True)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoWire(f"{' '.join(words[:4])}: {done.stderr.strip() or done.returncode}")

"""Free TCP ports for workers, below the range from which the kernel hands out ephemeral ones."""

import random
import socket

FIRST, LAST = 20000, 32000


def free_ports(count: int, host: str = "127.0.0.1", taken: frozenset[int] = frozenset()) -> list[int]:
    """Return `count` different ports in [FIRST, LAST], none in `taken`, each free on `host` a moment ago.

    Random, so that two clusters started at once rarely meet. Raises OSError when there are too few.
    """
    found: list[int] = []
    for port in random.sample(range(FIRST, LAST + 1), LAST + 1 - FIRST):
        if len(found) == count:
            break
        if port not in taken and _is_free(port, host):
            found.append(port)
    if len(found) < count:
        raise OSError(f"only {len(found)} of {count} ports are free on {host} between {FIRST} and {LAST}")
    return found


def _is_free(port: int, host: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
        return True

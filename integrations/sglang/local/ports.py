"""Free TCP ports for workers, below the range from which the kernel hands out ephemeral ones."""

import random
import socket

FIRST, LAST = 20000, 32000


def free_ports(count: int, host: str = "127.0.0.1", taken: frozenset[int] = frozenset()) -> list[int]:
    """Return `count` different even ports in [FIRST, LAST], none in `taken`, each free on `host` just now.

    So was the odd one above each, where a prefill worker with two transports serves the second one.
    Random, so that two clusters started at once rarely meet. Raises OSError when there are too few.
    """
    found: list[int] = []
    even = range(FIRST + FIRST % 2, LAST + 1, 2)
    for port in random.sample(even, len(even)):
        if len(found) == count:
            break
        if port not in taken and _is_free(port, host) and _is_free(port + 1, host):
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

"""Which workers share this host's clock."""

import ipaddress
import socket
from functools import cache


@cache
def is_here(host: str) -> bool:
    """Whether `host` (a worker's: an address or a name) is the machine that this process runs on.

    A name is compared with this machine's own and not looked up: an answer would have to be waited for.
    """
    if host in ("localhost", socket.gethostname()):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0))  # only an address of this machine can be bound
        except OSError:
            return False
    return not address.is_unspecified

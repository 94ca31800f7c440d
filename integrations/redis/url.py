"""Redis URLs: what they may say, and how to print one without its secrets."""

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from redis.asyncio.connection import parse_url

_USERINFO = re.compile(r"(?<=://)\S*@")  # greedy: a password with an unescaped / or @ is hidden too
_SECRET_PARAMETER = re.compile(r"(?i)([?&][^=&\s]*(?:password|secret|token)[^=&\s]*=)[^&\s]*")
_ALIASES = {"valkey": "redis", "valkeys": "rediss", "valkey+unix": "unix"}
SCHEMES = (
    "redis://, rediss:// (TLS), unix://, redis+sentinel://HOST:PORT,HOST:PORT/SERVICE, "
    "redis+cluster://HOST:PORT,HOST:PORT"
)


class StoreError(Exception):
    """The store's URL is unusable or the store does not answer; one line, without secrets."""


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed URL. `kind`: single, sentinel or cluster; `options`: keyword arguments for redis-py."""

    kind: str
    hosts: tuple[tuple[str, int], ...]
    service: str = ""
    options: dict[str, Any] = field(default_factory=dict, repr=False)
    sentinel_options: dict[str, Any] = field(default_factory=dict, repr=False)


def redact(text: str) -> str:
    """`text` with the user part of every URL, and every password in a query, replaced by ***."""
    return _SECRET_PARAMETER.sub(r"\1***", _USERINFO.sub("***@", text))


def parse(url: str) -> Address:
    """Read a store URL. Raises StoreError with the forms that are understood.

    Sentinel: the user part and the query are for the servers; `sentinel_username` and
    `sentinel_password` in the query are for the sentinels themselves. TLS files go in the query
    (`ssl_ca_certs`, `ssl_certfile`, `ssl_keyfile`), as in redis-py.
    """
    scheme, separator, rest = url.partition("://")
    scheme = _ALIASES.get(scheme.lower(), scheme.lower())
    base, _, kind = scheme.partition("+")
    if not separator or base not in ("redis", "rediss", "unix") or kind not in ("", "sentinel", "cluster"):
        raise StoreError(f"cannot use store URL '{_shown(url)}'; understood are {SCHEMES}")
    try:
        if kind:
            return _many(base, kind, rest)
        options = _options(f"{base}://{rest}")
        if base == "unix":
            options["unix_socket_path"] = options.pop("path", "")
            return Address("single", (), options=options)
        host, port = options.get("host", "localhost"), options.get("port", 6379)
        return Address("single", ((host, port),), options={**options, "host": host, "port": port})
    except ValueError as error:
        # redis-py and urllib quote the piece they choke on, which may be a piece of a password
        detail = "host, port, database or an option is malformed" if "@" in url else str(error)
        raise StoreError(f"cannot use store URL '{_shown(url)}': {detail}") from None


def _shown(url: str) -> str:
    """Of what is no URL: a missing :// or a blank must not let its secret through."""
    head, at, host = url.rpartition("@")
    scheme, separator, _ = head.partition("://")
    return redact(f"{scheme if separator else ''}{separator}***@{host}" if at else url)


def _many(base: str, kind: str, rest: str) -> Address:
    parts = urlsplit(f"//{rest}")
    user, at, hosts_text = parts.netloc.rpartition("@")
    default_port = 26379 if kind == "sentinel" else 6379
    hosts = tuple(_host(text, default_port) for text in hosts_text.split(",") if text)
    if not hosts:
        raise ValueError("no host")
    query = dict(parse_qsl(parts.query))
    sentinel: dict[str, Any] = {}
    for name in [name for name in query if name.startswith("sentinel_")]:
        sentinel[name.removeprefix("sentinel_")] = query.pop(name)
    path = [segment for segment in parts.path.split("/") if segment]
    service = ""
    if kind == "sentinel":
        if not path:
            raise ValueError("a sentinel URL names its service: redis+sentinel://HOST:PORT/SERVICE")
        service, path = path[0], path[1:]
    database = f"/{path[0]}" if path else ""
    host, port = hosts[0]
    netloc = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    single = f"{base}://{user}{at}{netloc}{database}" + (f"?{urlencode(query)}" if query else "")
    options = _options(single)
    for name in ("host", "port"):
        options.pop(name, None)
    if options.get("ssl"):
        sentinel.setdefault("ssl", True)
    return Address(kind, hosts, service, options, sentinel)


def _host(text: str, default_port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError(f"no host in '{text}'")
    return parts.hostname, parts.port or default_port


def _options(url: str) -> dict[str, Any]:
    options: dict[str, Any] = {**parse_url(url)}
    connection_class = options.pop("connection_class", None)
    if connection_class is not None and connection_class.__name__.startswith("SSL"):
        options["ssl"] = True
    return options

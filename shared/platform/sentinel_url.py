"""The URL of a Redis behind Sentinel.

`redis+sentinel://user:password@host:port,host:port/service/db`, with `rediss+sentinel` for TLS.
User and password are the server's; the options `sentinel_username` and `sentinel_password` are
those of the Sentinels.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

from shared.platform.node_list import Address, join_nodes, parse_nodes, split_url

SCHEMES = {"redis+sentinel": False, "rediss+sentinel": True}
"""Scheme -> whether the connections use TLS."""
_PORT = 26379
_OPTIONS = frozenset({"sentinel_username", "sentinel_password"})
TLS_OPTIONS = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname"})
"""Options that are passed to redis-py."""


class SentinelUrl(NamedTuple):
    """The parts of such a URL."""

    sentinels: tuple[Address, ...]
    service: str
    """The name of the master that the Sentinels watch."""
    db: int
    username: str | None
    password: str | None
    tls: bool
    options: dict[str, str]

    @property
    def name(self) -> str:
        """For log lines: no password."""
        return f"{self.service}@{join_nodes(self.sentinels)}/{self.db}"


def is_sentinel(url: str) -> bool:
    """Whether this is the URL of a Redis behind Sentinel."""
    return url.partition("://")[0] in SCHEMES


def parse(url: str) -> SentinelUrl:
    """The parts of a URL. Raises ValueError, without quoting a password."""
    parts = split_url(url)
    login, _, hosts = parts.netloc.rpartition("@")
    username, _, password = login.partition(":")
    service, _, db = parts.path.strip("/").partition("/")
    if not service or not hosts:
        raise ValueError("a Sentinel URL is redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB")
    if db and not db.isdecimal():
        raise ValueError("the database of a Sentinel URL is not a number")
    options = dict(parse_qsl(parts.query))
    unknown = sorted(options.keys() - _OPTIONS - TLS_OPTIONS)
    if unknown:
        raise ValueError(f"a Sentinel URL has no option {unknown[0]!r}")
    return SentinelUrl(
        parse_nodes(hosts, _PORT, "Sentinel"),
        service,
        int(db or 0),
        unquote(username) or None,
        unquote(password) or None,
        SCHEMES[parts.scheme],
        options,
    )

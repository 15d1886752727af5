"""The URL of a Redis Cluster.

`redis+cluster://user:password@host:port,host:port`, with `rediss+cluster` for TLS. A few of its
nodes are enough: each names all.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

from shared.platform.node_list import Address, join_nodes, parse_nodes, split_url
from shared.platform.sentinel_url import TLS_OPTIONS

SCHEMES = {"redis+cluster": False, "rediss+cluster": True}
"""Scheme -> whether the connections use TLS."""
_PORT = 6379


class ClusterUrl(NamedTuple):
    """The parts of such a URL."""

    nodes: tuple[Address, ...]
    username: str | None
    password: str | None
    tls: bool
    options: dict[str, str]
    """Of TLS, as redis-py names them."""

    @property
    def name(self) -> str:
        """For log lines: no password."""
        return join_nodes(self.nodes)


def is_cluster(url: str) -> bool:
    """Whether this is the URL of a Redis Cluster."""
    return url.partition("://")[0] in SCHEMES


def parse(url: str) -> ClusterUrl:
    """The parts of a URL. Raises ValueError, without quoting a password."""
    parts = split_url(url)
    login, _, hosts = parts.netloc.rpartition("@")
    username, _, password = login.partition(":")
    if not hosts:
        raise ValueError("a cluster URL is redis+cluster://HOST:PORT,HOST:PORT")
    if parts.path.strip("/"):
        raise ValueError("a cluster has no databases: a cluster URL ends with its last HOST:PORT")
    options = dict(parse_qsl(parts.query))
    unknown = sorted(options.keys() - TLS_OPTIONS)
    if unknown:
        raise ValueError(f"a cluster URL has no option {unknown[0]!r}")
    return ClusterUrl(
        parse_nodes(hosts, _PORT, "cluster node"),
        unquote(username) or None,
        unquote(password) or None,
        SCHEMES[parts.scheme],
        options,
    )

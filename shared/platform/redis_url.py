"""The URL of a Redis: one server, the master that Sentinels name, or a cluster.

`redis://user:password@host:port/db`, `unix:///path?db=0`,
`redis+sentinel://user:password@host:port,host:port/service/db` (user and password are the server's;
the options `sentinel_username` and `sentinel_password` are those of the Sentinels), and
`redis+cluster://user:password@host:port,host:port`, of which a few nodes are enough. `rediss` in
place of `redis` is with TLS, whose options have the names that redis-py gives them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote

Address = tuple[str, int]
"""Host and port."""

UNIX = "unix"
ONE = "redis"
SENTINEL = "redis+sentinel"
CLUSTER = "redis+cluster"

_NO = frozenset({"0", "F", "FALSE", "N", "NO"})
_PORTS = {ONE: 6379, SENTINEL: 26379, CLUSTER: 6379}
TLS_OPTIONS = frozenset(
    f"ssl_{name}"
    for name in (
        "ca_certs",
        "ca_data",
        "ca_path",
        "cert_reqs",
        "certfile",
        "check_hostname",
        "ciphers",
        "keyfile",
        "password",
    )
)
_OPTIONS = {
    UNIX: frozenset({"db", "username", "password"}),
    ONE: TLS_OPTIONS | {"db", "username", "password"},
    SENTINEL: TLS_OPTIONS | {"sentinel_username", "sentinel_password"},
    CLUSTER: TLS_OPTIONS,
}


class RedisUrl(NamedTuple):
    """The parts of such a URL."""

    kind: str
    """UNIX, ONE, SENTINEL or CLUSTER."""
    nodes: tuple[Address, ...] = ()
    """The server, the Sentinels, or nodes of the cluster."""
    path: str = ""
    """Of the socket."""
    service: str = ""
    """The name of the master that the Sentinels watch."""
    db: int = 0
    username: str = ""
    password: str = ""
    tls: bool = False
    options: Mapping[str, str] = {}
    """`ssl_...` and `sentinel_...`."""

    @property
    def name(self) -> str:
        """For log lines: no password."""
        if self.kind == UNIX:
            return f"{self.path}/{self.db}"
        nodes = ",".join(f"{host}:{port}" for host, port in self.nodes)
        if self.kind == CLUSTER:
            return nodes
        return f"{self.service}@{nodes}/{self.db}" if self.service else f"{nodes}/{self.db}"


def is_cluster(url: str) -> bool:
    """Whether this is the URL of a Redis Cluster."""
    return url.partition("://")[0] in {CLUSTER, "rediss+cluster"}


def checks_host_name(url: RedisUrl) -> bool:
    """Whether the server's certificate has to be that of its host, as it has by default."""
    return url.options.get("ssl_check_hostname", "").upper() not in _NO


def parse(url: str) -> RedisUrl:
    """The parts of a URL. Raises ValueError, without quoting a password."""
    parts = split_url(url)
    kind = parts.scheme.replace("rediss", "redis")
    if kind not in _OPTIONS:
        raise ValueError(
            "must start with redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://"
        )
    _check_login(parts)
    options = dict(parse_qsl(parts.query))
    if unknown := sorted(options.keys() - _OPTIONS[kind]):
        raise ValueError(f"a {kind}:// URL has no option {unknown[0]!r}")
    login, _, hosts = parts.netloc.rpartition("@")
    username, _, password = login.partition(":")
    found = RedisUrl(
        kind,
        username=unquote(username) or options.pop("username", ""),
        password=unquote(password) or options.pop("password", ""),
        tls=parts.scheme.startswith("rediss"),
        options=options,
    )
    if kind == UNIX:
        return found._replace(path=unquote(parts.path), db=_database(options.pop("db", "")))
    if kind == ONE:
        node = (_address(hosts, kind) if hosts else ("localhost", _PORTS[ONE]),)
        return found._replace(nodes=node, db=_database(options.pop("db", parts.path.strip("/"))))
    nodes = tuple(_address(node, kind) for node in hosts.split(","))
    if kind == CLUSTER:
        if parts.path.strip("/"):
            raise ValueError("a cluster has no databases: its URL ends with its last HOST:PORT")
        return found._replace(nodes=nodes)
    service, _, db = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError("a Sentinel URL is redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB")
    return found._replace(nodes=nodes, service=service, db=_database(db))


def _database(text: str) -> int:
    if text and not text.isdecimal():
        raise ValueError("the database of a Redis URL is not a number")
    return int(text or 0)


def _address(text: str, kind: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(_PORTS[kind])
    if not host or not port.isdecimal() or int(port) > 65_535:
        # Nothing is quoted: it may be a password.
        raise ValueError(
            f"an address in a {kind}:// URL is not HOST:PORT, or the password is not "
            "percent-encoded"
        )
    return host.strip("[]"), int(port)


def _check_login(parts: SplitResult) -> None:
    """Raise ValueError if the password has characters that mean something else in a URL."""
    rest = parts.path + parts.fragment + parts.query.partition("=")[0]
    if parts.scheme != UNIX and ("@" in rest or {*"[]"} & {*parts.netloc.rpartition("@")[0]}):
        raise ValueError(
            "the password must be percent-encoded: / is %2F, ? is %3F, # is %23, @ is %40, [ is "
            "%5B, ] is %5D, % is %25"
        )


def split_url(url: str) -> SplitResult:
    """The parts of a URL that may have several hosts.

    urlsplit refuses several addresses in brackets since Python 3.13.4.
    """
    scheme, _, rest = url.partition("://")
    rest, _, fragment = rest.partition("#")
    rest, _, query = rest.partition("?")
    netloc, slash, path = rest.partition("/")
    return SplitResult(scheme, netloc, slash + path, query, fragment)


def without_password(url: str) -> str:
    """`url` as it may be shown."""
    parts = split_url(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()

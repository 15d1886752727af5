"""Several addresses in one URL: `host:port,host:port`, as of Sentinels or of a cluster's nodes."""

from __future__ import annotations

from urllib.parse import SplitResult

Address = tuple[str, int]
"""Host and port."""


def parse_nodes(text: str, default_port: int, what: str) -> tuple[Address, ...]:
    """The addresses; `what` names one of them in the ValueError for what is no address."""
    return tuple(_address(node, default_port, what) for node in text.split(","))


def join_nodes(nodes: tuple[Address, ...]) -> str:
    """The addresses in one line, for logs."""
    return ",".join(f"{host}:{port}" for host, port in nodes)


def _address(text: str, default_port: int, what: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(default_port)
    if not host or not port.isdecimal():
        raise ValueError(f"the address of a {what} is not HOST:PORT")
    return host.strip("[]"), int(port)


def check_login(url: str) -> None:
    """Raise ValueError if the password has characters that mean something else in a URL."""
    parts = split_url(url)
    rest = parts.path + parts.fragment + parts.query.partition("=")[0]
    if parts.scheme != "unix" and ("@" in rest or {*"[]"} & {*parts.netloc.rpartition("@")[0]}):
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

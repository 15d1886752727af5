"""Checks of requests that web pages send: those of other sites may not change anything.

A browser sends requests of any page to every address that its machine reaches, so also to a
gateway without keys on 127.0.0.1. Three checks, each against one such attack:

1. **Host**: a page whose own name resolves to the gateway's address (DNS rebinding) is of the same
   origin for the browser. That name is in `Host`, so only the machine's own names, IP addresses and
   `FLOTILLA_ALLOWED_HOSTS` are answered.
2. **Origin and Sec-Fetch-Site** of requests that change something: a page of another site can send
   them, but not read the answer. Browsers send these headers, other clients neither.
3. **Content type** of requests that change something: the three types that a page may send across
   sites without a CORS preflight request, and a body without a type, are refused, also where no
   body is read. Where one is read, body.py checks its type; some routes take forms.

With keys none of them is needed: the browser adds no key to what a page sends, as it would a
cookie. So who sends a valid key may call from anywhere (cors.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_address

from starlette.types import Scope

from shared.job.errors import ForeignSite, UnknownHost, UnsupportedMediaType

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_ACROSS_SITES = frozenset(
    {b"application/x-www-form-urlencoded", b"multipart/form-data", b"text/plain"}
)
_LOOPBACK = frozenset({"127.0.0.1", "[::1]", "localhost"})


class WebPages:
    """Refuses requests of pages that are not the gateway's."""

    def __init__(self, allowed_hosts: Iterable[str], *, with_keys: bool) -> None:
        """`allowed_hosts`: further names of this gateway, in lower case and without a port."""
        self._allowed = frozenset(allowed_hosts)
        self._with_keys = with_keys
        self._answered: bytes | None = None
        """The latest `Host` that is one of this gateway's."""

    def check(self, scope: Scope, *, checks_type: bool) -> None:
        """Raises UnknownHost, ForeignSite, UnsupportedMediaType.

        `checks_type`: the content type of this request is not checked by what reads its body.
        """
        if self._with_keys:
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])  # a browser sends each of these once
        host = headers.get(b"host", b"")
        if host != self._answered and b"host" in headers:
            self._check_host(host)
            self._answered = host
        if scope["method"] in _SAFE_METHODS:
            return
        if b"origin" in headers or b"sec-fetch-site" in headers:
            origin, site = headers.get(b"origin", b""), headers.get(b"sec-fetch-site", b"")
            self._check_site(host, origin, site)
        if checks_type:
            _check_type(headers)

    def _check_host(self, value: bytes) -> None:
        name = _name_in(value)
        if name in _LOOPBACK or name in self._allowed or _is_address(name):
            return
        raise UnknownHost(
            f"This gateway has no API keys, so it answers only to the names of its machine "
            f"(127.0.0.1, localhost, an IP address) and to those in FLOTILLA_ALLOWED_HOSTS; the "
            f"`Host` of this request is {name[:64]!r}."
        )

    def _check_site(self, host: bytes, origin: bytes, site: bytes) -> None:
        # Sec-Fetch-Site goes before the comparison with `Host`, which a proxy may have changed.
        if site in (b"same-origin", b"none"):
            return
        where = origin.rpartition(b"://")[2].lower()
        if where and not site and where == host.lower():
            return
        if _name_in(where) in self._allowed:
            return
        page = f", {origin[:64].decode('latin-1')!r}," if origin else ""
        raise ForeignSite(
            f"This request comes from a web page of another site{page} and may not change anything "
            "here, as this gateway has no API keys. If it is the gateway's own page, behind a "
            "proxy, name its host in FLOTILLA_ALLOWED_HOSTS; other pages need a key "
            "(FLOTILLA_API_KEYS), and FLOTILLA_CORS_ORIGINS to read the answers."
        )


def _check_type(headers: Mapping[bytes, bytes]) -> None:
    media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    has_body = b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
    if media_type in _ACROSS_SITES or (has_body and not media_type):
        sent = repr(media_type.decode("latin-1")) if media_type else "none"
        raise UnsupportedMediaType(
            "Send a body as JSON, with the header `Content-Type: application/json`; the content "
            f"type of this request is {sent}."
        )


def _name_in(host: bytes) -> str:
    """The name in `name:port`, in lower case; of an IPv6 address with its brackets."""
    name, colon, port = host.decode("latin-1").lower().rpartition(":")
    return name if colon and port.isdecimal() else f"{name}{colon}{port}"


def _is_address(name: str) -> bool:
    """Whether it is an IP address, which DNS rebinding can't use: that needs a name."""
    try:
        ip_address(name[1:-1] if name.startswith("[") and name.endswith("]") else name)
    except ValueError:
        return False
    return True

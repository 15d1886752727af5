"""How the clients of a run reach the gateways."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import httpx

_CONNECT_S = 5.0


class Gateways:
    """The addresses of all gateways, and connections to them."""

    def __init__(self, urls: Sequence[str], *, timeout_s: float) -> None:
        self._urls = list(urls)
        self._turn = itertools.count()
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(timeout_s, connect=_CONNECT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        )

    @property
    def http(self) -> httpx.AsyncClient:
        """Plain requests: a broken connection is an error."""
        return self._http

    def url(self) -> str:
        """Return the address of the next gateway in turn."""
        return self._urls[next(self._turn) % len(self._urls)]

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()


def error_code(body: bytes) -> str:
    """Return the code of OpenAI's error object, else its type, else nothing."""
    try:
        error: Any = json.loads(body)["error"]
        return str(error.get("code") or error.get("type") or "")
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""

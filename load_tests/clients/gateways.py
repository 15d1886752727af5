"""How clients reach the gateways of a fleet."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from shared.client.async_transport import AsyncResumingTransport
from shared.client.retries import Limits

JOB_ID = "x-flotilla-job-id"
_CONNECT_S = 5.0
_IDLE_S = 2.0
"""Idle connections are closed after so long: before the gateway closes them."""


class Gateways:
    """The addresses of all gateways, and connections to them."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        timeout_s: float,
        attempts: int | None = None,
        headers: Mapping[str, str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`timeout_s`: time limit for the next bytes.

        `attempts`: of the product's client, which repeats requests and takes up broken streams
        elsewhere; None: plain clients. `transport` replaces the network in tests.
        """
        self.resumes = attempts is not None
        self._turn = itertools.count()
        self._connections = _Connections(transport)
        timeout = httpx.Timeout(timeout_s, connect=_CONNECT_S)

        def client(url: str, transport: httpx.AsyncBaseTransport) -> httpx.AsyncClient:
            return httpx.AsyncClient(
                timeout=timeout, base_url=url, headers=headers, transport=transport
            )

        self._plain = [client(url, self._connections) for url in urls]
        self._resuming = [
            client(
                url,
                AsyncResumingTransport(
                    [*urls[n:], *urls[:n]], Limits(attempts=attempts), self._connections
                ),
            )
            for n, url in enumerate(urls)
            if attempts is not None
        ]

    @property
    def plain(self) -> httpx.AsyncClient:
        """A client of the next gateway in turn; a broken connection is an error."""
        return self._plain[next(self._turn) % len(self._plain)]

    def in_turn(self) -> Sequence[httpx.AsyncClient]:
        """Return the clients to try one after the other, if no answer has begun.

        That is one that resumes, or a plain one for each gateway.
        """
        first = next(self._turn) % len(self._plain)
        if self.resumes:
            return [self._resuming[first]]
        return [*self._plain[first:], *self._plain[:first]]

    def port_of(self, job_id: str) -> int | None:
        """Return the port of the gateway that answered about this job last; None if none did."""
        return self._connections.ports.get(job_id)

    def forget(self, job_id: str) -> None:
        """The client of this job has ended."""
        self._connections.ports.pop(job_id, None)

    async def close(self) -> None:
        """Close all connections."""
        await self._connections.aclose()


class _Connections(httpx.AsyncBaseTransport):
    """httpx's connections; notes which gateway answered about which job."""

    def __init__(self, transport: httpx.AsyncBaseTransport | None) -> None:
        limits = httpx.Limits(
            max_connections=None, max_keepalive_connections=64, keepalive_expiry=_IDLE_S
        )
        self._transport = transport or httpx.AsyncHTTPTransport(limits=limits)
        self.ports: dict[str, int | None] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            response = await self._transport.handle_async_request(request)
        except AttributeError as error:
            # anyio with uvloop: the connection was reset before anyio has read its address.
            raise httpx.ConnectError(str(error), request=request) from error
        if JOB_ID in response.headers:
            self.ports[response.headers[JOB_ID]] = request.url.port
        return response

    async def aclose(self) -> None:
        await self._transport.aclose()


def error_code(body: bytes) -> str:
    """Return the code of OpenAI's error object, else its type, else nothing."""
    try:
        error: Any = json.loads(body)["error"]
        return str(error.get("code") or error.get("type") or "")
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""

"""How the clients of a run reach the gateways."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import httpx

from shared.client.async_transport import AsyncResumingTransport
from shared.client.retries import Limits

JOB_ID = "x-flotilla-job-id"
_CONNECT_S = 5.0


class Gateways:
    """The addresses of all gateways, and connections to them."""

    def __init__(self, urls: Sequence[str], *, timeout_s: float, attempts: int) -> None:
        """`timeout_s`: time limit for the next bytes; `attempts`: of the resuming client."""
        self._urls = list(urls)
        self._turn = itertools.count()
        self._connections = _Connections()
        timeout = httpx.Timeout(timeout_s, connect=_CONNECT_S)
        self.plain = httpx.AsyncClient(timeout=timeout, transport=self._connections)
        """Each request goes to the gateway that it names; a broken connection is an error."""
        self._resuming = [
            httpx.AsyncClient(
                timeout=timeout,
                base_url=urls[n],
                transport=AsyncResumingTransport(
                    self._urls[n:] + self._urls[:n], Limits(attempts=attempts), self._connections
                ),
            )
            for n in range(len(urls))
        ]

    @property
    def resuming(self) -> httpx.AsyncClient:
        """The product's client, which repeats requests and takes up broken streams elsewhere.

        Each time another gateway is the preferred one.
        """
        return self._resuming[next(self._turn) % len(self._resuming)]

    def url(self) -> str:
        """Return the address of the next gateway in turn."""
        return self._urls[next(self._turn) % len(self._urls)]

    def port_of(self, job_id: str) -> int | None:
        """Return the port of the gateway that answered about this job last; None if none did."""
        return self._connections.ports.get(job_id)

    def forget(self, job_id: str) -> None:
        """The client of this job has ended."""
        self._connections.ports.pop(job_id, None)

    async def close(self) -> None:
        """Close all connections."""
        await self.plain.aclose()


class _Connections(httpx.AsyncHTTPTransport):
    """httpx's connections; notes which gateway answered about which job."""

    def __init__(self) -> None:
        super().__init__(limits=httpx.Limits(max_connections=None, max_keepalive_connections=64))
        self.ports: dict[str, int | None] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            response = await super().handle_async_request(request)
        except AttributeError as error:
            # anyio with uvloop: the connection was reset before anyio has read its address.
            raise httpx.ConnectError(str(error), request=request) from error
        if JOB_ID in response.headers:
            self.ports[response.headers[JOB_ID]] = request.url.port
        return response


def error_code(body: bytes) -> str:
    """Return the code of OpenAI's error object, else its type, else nothing."""
    try:
        error: Any = json.loads(body)["error"]
        return str(error.get("code") or error.get("type") or "")
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""

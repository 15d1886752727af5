"""The transports for httpx2, which newer versions of OpenAI's SDK use by default.

    OpenAI(http_client=DefaultHttpxClient(transport=ResumingTransport(["http://a", "http://b"])))

httpx2 has the interface of httpx in classes of its own. Requests, responses and errors are turned
into the other's here, so the transports themselves are the same.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager

import httpx
import httpx2

from shared.client import async_transport
from shared.client import transport as sync_transport
from shared.client.retries import Limits


class ResumingTransport(httpx2.BaseTransport):
    """As shared.client.transport.ResumingTransport, for httpx2.Client."""

    def __init__(
        self,
        gateways: Sequence[str],
        limits: Limits | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """See transport.ResumingTransport."""
        self._inner = sync_transport.ResumingTransport(gateways, limits, transport)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Called by httpx2: send one request, more than once if need be."""
        request.read()
        with _errors_of_httpx2():
            response = self._inner.handle_request(_request(request))
        return _response(response, _Stream(response))

    def close(self) -> None:
        """Close all connections."""
        self._inner.close()


class AsyncResumingTransport(httpx2.AsyncBaseTransport):
    """As shared.client.async_transport.AsyncResumingTransport, for httpx2.AsyncClient."""

    def __init__(
        self,
        gateways: Sequence[str],
        limits: Limits | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """See transport.ResumingTransport."""
        self._inner = async_transport.AsyncResumingTransport(gateways, limits, transport)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Called by httpx2: send one request, more than once if need be."""
        await request.aread()
        with _errors_of_httpx2():
            response = await self._inner.handle_async_request(_request(request))
        return _response(response, _AsyncStream(response))

    async def aclose(self) -> None:
        """Close all connections."""
        await self._inner.aclose()


class _Stream(httpx2.SyncByteStream):
    def __init__(self, response: httpx.Response) -> None:
        self._stream = sync_transport.raw_stream(response)

    def __iter__(self) -> Iterator[bytes]:
        with _errors_of_httpx2():
            yield from self._stream

    def close(self) -> None:
        self._stream.close()


class _AsyncStream(httpx2.AsyncByteStream):
    def __init__(self, response: httpx.Response) -> None:
        self._stream = async_transport.raw_stream(response)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _errors_of_httpx2():
            async for data in self._stream:
                yield data

    async def aclose(self) -> None:
        await self._stream.aclose()


@contextmanager
def _errors_of_httpx2() -> Iterator[None]:
    try:
        yield
    except httpx.TransportError as error:
        raise getattr(httpx2, type(error).__name__)(str(error)) from error


def _request(request: httpx2.Request) -> httpx.Request:
    return httpx.Request(
        request.method,
        str(request.url),
        headers=request.headers.raw,
        content=request.content,
        extensions=request.extensions,
    )


def _response(
    response: httpx.Response, stream: httpx2.SyncByteStream | httpx2.AsyncByteStream
) -> httpx2.Response:
    return httpx2.Response(
        response.status_code,
        headers=response.headers.raw,
        stream=stream,
        extensions=response.extensions,
    )

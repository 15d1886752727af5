"""The transport for httpx.AsyncClient; as transport.py, with `await`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import httpx

from shared.client.call import Call, Verdict, retry_after_s
from shared.client.connections import LIMITS, SOCKET_OPTIONS
from shared.client.retries import Gateways, Limits, Retries
from shared.client.stream_state import StreamState


class AsyncResumingTransport(httpx.AsyncBaseTransport):
    """See ResumingTransport.

    AsyncOpenAI(http_client=httpx.AsyncClient(transport=AsyncResumingTransport([...])))
    """

    def __init__(
        self,
        gateways: Sequence[str],
        limits: Limits | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`gateways`: base URLs, the preferred one first; they replace the host of each request.

        `transport`: makes the connections; by default httpx's own.
        """
        self._gateways = Gateways(gateways)
        self._limits = limits or Limits()
        self._transport = transport or httpx.AsyncHTTPTransport(
            limits=LIMITS, socket_options=SOCKET_OPTIONS
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Called by httpx: send one request, more than once if need be."""
        await request.aread()
        call = Call(request, self._limits.silence_s)
        retries = Retries(self._gateways, self._limits)
        while True:
            try:
                response = await self._transport.handle_async_request(call.request(retries.gateway))
                verdict = call.verdict(response)
                if verdict is Verdict.STREAM:
                    return self._stream(call, retries, response)
                if verdict is Verdict.OTHER_STREAM:
                    return response
                answer = await _read(response)
            except httpx.TransportError as error:
                delay_s = retries.failed(error) if call.may_retry(error) else None
                if delay_s is None:
                    raise
            else:
                if verdict is Verdict.FINAL:
                    return answer
                delay_s = retries.failed(retry_after_s=retry_after_s(answer))
                if delay_s is None:
                    return answer
            await asyncio.sleep(delay_s)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._transport.aclose()

    def _stream(self, call: Call, retries: Retries, response: httpx.Response) -> httpx.Response:
        stream = _ResumedStream(StreamState(call, retries, response), self._transport)
        return httpx.Response(
            response.status_code,
            headers=response.headers,
            stream=stream,
            extensions=response.extensions,
        )


class _ResumedStream(httpx.AsyncByteStream):
    """The body of a streamed answer."""

    def __init__(self, state: StreamState, transport: httpx.AsyncBaseTransport) -> None:
        self._state = state
        self._transport = transport

    async def __aiter__(self) -> AsyncIterator[bytes]:
        state = self._state
        while True:
            failure: httpx.TransportError | None = None
            try:
                async for data in raw_stream(state.response):
                    if passed := state.feed(data):
                        yield passed
                    if state.interrupted:
                        break
            except httpx.TransportError as error:
                failure = error
            await state.response.aclose()
            if state.at_end(failure):
                return
            if not await self._resume(failure):
                if rest := state.give_up(failure):
                    yield rest
                return

    async def aclose(self) -> None:
        """Called by httpx when the answer is complete or its reader has no use for the rest."""
        await self._state.response.aclose()
        request = self._state.cancel_request()
        if request is not None:
            with contextlib.suppress(httpx.TransportError):
                response = await self._transport.handle_async_request(request)
                await response.aclose()

    async def _resume(self, failure: httpx.TransportError | None) -> bool:
        """Get a response with the rest of the answer; False: there is none."""
        state = self._state
        delay_s = state.failed(failure)
        while delay_s is not None:
            await asyncio.sleep(delay_s)
            try:
                response = await self._transport.handle_async_request(state.rest_request())
                verdict = state.verdict(response)
                if verdict is Verdict.STREAM:
                    return True
                answer = await _read(response)
            except httpx.TransportError as error:
                delay_s = state.failed(error)
                continue
            if verdict is Verdict.FINAL:
                state.refused(answer)
                return False
            delay_s = state.failed(refusal=answer)
        return False


def raw_stream(response: httpx.Response) -> httpx.AsyncByteStream:
    """The body's bytes as they come from the network, not decoded."""
    stream = response.stream
    assert isinstance(stream, httpx.AsyncByteStream)
    return stream


async def _read(response: httpx.Response) -> httpx.Response:
    """The same response with its whole body."""
    try:
        body = b"".join([part async for part in raw_stream(response)])
    finally:
        await response.aclose()
    return httpx.Response(
        response.status_code,
        headers=response.headers,
        stream=httpx.ByteStream(body),
        extensions=response.extensions,
    )

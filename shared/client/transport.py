"""The transport for httpx.Client, so for OpenAI's client and others that are made with one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

import httpx

from shared.client.call import Call, Verdict, retry_after_s
from shared.client.connections import LIMITS, SOCKET_OPTIONS
from shared.client.retries import Gateways, Limits, Retries
from shared.client.stream_state import StreamState


class ResumingTransport(httpx.BaseTransport):
    """Sends each request to a gateway of a list; when one is lost, goes on with the next.

    Whole requests are repeated with an Idempotency-Key, which makes a repeated one join the first
    one's job. A streamed answer that breaks is taken up again at the next event, so its reader gets
    the bytes of an undisturbed one.

        OpenAI(http_client=httpx.Client(transport=ResumingTransport(["http://a", "http://b"])))
    """

    def __init__(
        self,
        gateways: Sequence[str],
        limits: Limits | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """`gateways`: base URLs, the preferred one first; they replace the host of each request.

        `transport`: makes the connections; by default httpx's own.
        """
        self._gateways = Gateways(gateways)
        self._limits = limits or Limits()
        self._transport = transport or httpx.HTTPTransport(
            limits=LIMITS, socket_options=SOCKET_OPTIONS
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Called by httpx: send one request, more than once if need be."""
        request.read()
        call = Call(request, self._limits.silence_s)
        retries = Retries(self._gateways, self._limits)
        while True:
            try:
                response = self._transport.handle_request(call.request(retries.gateway))
                verdict = call.verdict(response)
                if verdict is Verdict.STREAM:
                    return self._stream(call, retries, response)
                if verdict is Verdict.OTHER_STREAM:
                    return response
                answer = _read(response)
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
            time.sleep(delay_s)

    def close(self) -> None:
        """Close all connections."""
        self._transport.close()

    def _stream(self, call: Call, retries: Retries, response: httpx.Response) -> httpx.Response:
        stream = _ResumedStream(StreamState(call, retries, response), self._transport)
        return httpx.Response(
            response.status_code,
            headers=response.headers,
            stream=stream,
            extensions=response.extensions,
        )


class _ResumedStream(httpx.SyncByteStream):
    """The body of a streamed answer."""

    def __init__(self, state: StreamState, transport: httpx.BaseTransport) -> None:
        self._state = state
        self._transport = transport

    def __iter__(self) -> Iterator[bytes]:
        state = self._state
        while True:
            failure: httpx.TransportError | None = None
            try:
                for data in raw_stream(state.response):
                    if passed := state.feed(data):
                        yield passed
                    if state.interrupted:
                        break
            except httpx.TransportError as error:
                failure = error
            state.response.close()
            if state.at_end(failure):
                return
            if not self._resume(failure):
                if rest := state.give_up(failure):
                    yield rest
                return

    def close(self) -> None:
        """Called by httpx when the answer is complete or its reader has no use for the rest."""
        self._state.response.close()
        request = self._state.cancel_request()
        if request is not None:
            with contextlib.suppress(httpx.TransportError):
                self._transport.handle_request(request).close()

    def _resume(self, failure: httpx.TransportError | None) -> bool:
        """Get a response with the rest of the answer; False: there is none."""
        state = self._state
        delay_s = state.failed(failure)
        while delay_s is not None:
            time.sleep(delay_s)
            try:
                response = self._transport.handle_request(state.rest_request())
                verdict = state.verdict(response)
                if verdict is Verdict.STREAM:
                    return True
                answer = _read(response)
            except httpx.TransportError as error:
                delay_s = state.failed(error)
                continue
            if verdict is Verdict.FINAL:
                state.refused(answer)
                return False
            delay_s = state.failed(refusal=answer)
        return False


def raw_stream(response: httpx.Response) -> httpx.SyncByteStream:
    """The body's bytes as they come from the network, not decoded."""
    stream = response.stream
    assert isinstance(stream, httpx.SyncByteStream)
    return stream


def _read(response: httpx.Response) -> httpx.Response:
    """The same response with its whole body."""
    try:
        body = b"".join(raw_stream(response))
    finally:
        response.close()
    return httpx.Response(
        response.status_code,
        headers=response.headers,
        stream=httpx.ByteStream(body),
        extensions=response.extensions,
    )

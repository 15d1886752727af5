"""A streamed answer over all its responses: what its client gets, and how the stream ends.

The transports do the input and output; all decisions about a stream are here.
"""

from __future__ import annotations

import httpx

from shared.client import sse
from shared.client.call import Call, Verdict, is_delimited, retry_after_s
from shared.client.retries import Retries

_OF_THE_ROUTE = frozenset({401, 404, 405, 429})
"""Statuses of a gateway that are not about the end of a job."""


class StreamState:
    """One stream, and the response from which its next bytes come."""

    def __init__(self, call: Call, retries: Retries, response: httpx.Response) -> None:
        self.response = response
        self._call = call
        self._retries = retries
        self._position = call.position(response)
        self._refusal = b""
        self._over = False
        self._began_at = -1  # the event that the latest response for the rest follows

    def feed(self, data: bytes) -> bytes:
        """What the client gets with these bytes of the response."""
        before = self._position.events
        passed = self._position.feed(data)
        if self._position.events != before:
            self._retries.progress()
        return passed

    @property
    def interrupted(self) -> bool:
        """The gateway has ended the stream with an error of its own; nothing else follows."""
        return bool(self._position.interruption)

    def at_end(self, failure: httpx.TransportError | None) -> bool:
        """The response has ended, with `failure` if its connection was lost; is it the answer's?

        An end without a last event may be a lost connection behind a proxy, or an answer of a kind
        that has no last event: another response shows which.
        """
        position = self._position
        clean = failure is None and not self.interrupted and is_delimited(self.response)
        self._over = position.complete or (
            clean and (position.failed or position.events == self._began_at)
        )
        return self._over

    def failed(
        self, error: Exception | None = None, refusal: httpx.Response | None = None
    ) -> float | None:
        """As Retries.failed; `refusal`: a response that another attempt may not get."""
        return self._retries.failed(error, 0.0 if refusal is None else retry_after_s(refusal))

    def rest_request(self) -> httpx.Request:
        """The request for the rest of the stream."""
        return self._call.rest_request(self._retries.gateway, self._position)

    def verdict(self, response: httpx.Response) -> Verdict:
        """What a response to `rest_request` means. The stream goes on with it if it is STREAM."""
        verdict = self._call.rest_verdict(response)
        if verdict is Verdict.STREAM:
            self.response = response
            self._position.restart()
            self._began_at = self._position.events
        return verdict

    def refused(self, answer: httpx.Response) -> None:
        """There is no rest of the stream; `answer` with its body is why.

        A job that has failed without output is answered with its error. The client's response has
        begun, so it gets that as the event with which a gateway ends a stream that has begun.
        """
        is_error = answer.headers.get("content-type", "").startswith("application/json")
        if not self._position.events and is_error and answer.status_code not in _OF_THE_ROUTE:
            self._refusal = sse.error_event(answer.read())

    def give_up(self, failure: httpx.TransportError | None) -> bytes:
        """The stream can't go on: the last bytes for the client. Raises the failure of the stream.

        `failure`: as for `at_end`.
        """
        self._over = True
        if self._refusal:
            return self._refusal
        if failure is not None:
            raise failure
        if not self.interrupted and not is_delimited(self.response):
            raise httpx.RemoteProtocolError("the stream has ended before its last event")
        return self._position.take_rest()

    def cancel_request(self) -> httpx.Request | None:
        """The client closes the stream: the request that cancels its job, if there is to be one."""
        position = self._position
        if self._over or position.complete or position.failed or not self._call.cancels:
            return None
        return self._call.cancel_request(self._retries.gateway, position)

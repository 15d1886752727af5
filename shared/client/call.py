"""One request of a client: how it is sent to each gateway, and what its responses mean."""

from __future__ import annotations

import json
import re
import uuid
from enum import Enum

import httpx

from shared.client.position import StreamPosition

_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})
_KEY, _ON_DISCONNECT, _JOB_ID = "idempotency-key", "x-flotilla-on-disconnect", "x-flotilla-job-id"
_KEEP = "keep_for=30"
"""Seconds in which a client has to come back; gateways cancel sooner by default."""
_RETRY_PREFIX = "flotilla-retry-"
"""Gateways keep the job of such a key no longer than one without a key."""
_EVENTS = "text/event-stream"
_RETRIED = frozenset({502, 503, 504})
_OF_A_BODY = frozenset({"content-type", "content-length", "transfer-encoding", _KEY})
_RESUMABLE = re.compile(r"/jobs/([^/]+)/stream$")
_CANCEL_TIMEOUT_S = 2.0


class Verdict(Enum):
    """What a response means for the call."""

    STREAM = "stream"
    """It is the answer, or the rest of it, and can be resumed."""
    FINAL = "final"
    """It is the answer; for the rest of a stream: there is no rest."""
    OTHER_STREAM = "other stream"
    """It is the answer, and can't be resumed: passed on as it comes."""
    RETRY = "retry"
    """Another attempt may succeed."""


class Call:
    """A request with its whole body."""

    def __init__(self, request: httpx.Request, silence_s: float) -> None:
        """`request` must have been read."""
        self._request = request
        self._content = request.content
        self._headers = request.headers.copy()
        path, _, self._query = request.url.raw_path.decode("ascii").partition("?")
        self._resumed = _RESUMABLE.search(path)
        self._exclusive = not {_KEY, _ON_DISCONNECT} & set(self._headers)
        if request.method not in _IDEMPOTENT:
            self._headers.setdefault(_KEY, f"{_RETRY_PREFIX}{uuid.uuid4()}")
        if request.method == "POST" or self._resumed:
            self._headers.setdefault(_ON_DISCONNECT, _KEEP)
        self._streams = bool(self._resumed) or _asks_for_stream(self._content)
        self._extensions = dict(request.extensions)
        if self._streams:
            self._extensions["timeout"] = _with_silence(self._extensions.get("timeout"), silence_s)

    @property
    def cancels(self) -> bool:
        """Whether its job is to be cancelled if the caller closes the stream before its end.

        Not if the caller has said what is to become of it, or may share it with others.
        """
        return self._exclusive and self._request.method == "POST"

    def may_retry(self, error: httpx.TransportError) -> bool:
        """Whether another attempt may succeed. A time limit of the caller's is not retried."""
        return not isinstance(
            error,
            httpx.PoolTimeout | httpx.UnsupportedProtocol | httpx.LocalProtocolError,
        ) and (self._streams or not isinstance(error, httpx.ReadTimeout))

    def request(self, gateway: httpx.URL) -> httpx.Request:
        """The caller's request, to this gateway."""
        path = self._request.url.raw_path.decode("ascii")
        return self._build(self._request.method, gateway, path, self._headers, self._content)

    def rest_request(self, gateway: httpx.URL, position: StreamPosition) -> httpx.Request:
        """The request for the rest of a stream."""
        return self._build("GET", gateway, position.path, self._headers_without_body())

    def cancel_request(self, gateway: httpx.URL, position: StreamPosition) -> httpx.Request:
        """The request to cancel the stream's job."""
        path = f"/jobs/{position.job_id}/cancel"
        request = self._build("POST", gateway, path, self._headers_without_body(), b"")
        request.extensions = {"timeout": httpx.Timeout(_CANCEL_TIMEOUT_S).as_dict()}
        return request

    def verdict(self, response: httpx.Response) -> Verdict:
        """What a response to `request` means."""
        if response.status_code in _RETRIED and _may_retry(response):
            return Verdict.RETRY
        if not response.headers.get("content-type", "").startswith(_EVENTS):
            return Verdict.FINAL
        own = self._request.method == "POST" or self._resumed
        return Verdict.STREAM if own and _is_stream(response) else Verdict.OTHER_STREAM

    def rest_verdict(self, response: httpx.Response) -> Verdict:
        """What a response to `rest_request` means."""
        if response.status_code == 200 and _is_stream(response):
            return Verdict.STREAM
        final = 400 <= response.status_code < 500 or not _may_retry(response)
        return Verdict.FINAL if final else Verdict.RETRY

    def position(self, response: httpx.Response) -> StreamPosition:
        """Where the stream of this response begins: the caller may have the first part."""
        job_id = response.headers[_JOB_ID]
        fields = httpx.QueryParams(self._query if self._resumed else "")
        try:
            after = int(fields.get("after", "0"))
            crc32 = int(fields["crc32"], 16) if "crc32" in fields else None
        except ValueError:
            after, crc32 = 0, None
        return StreamPosition(job_id, after, 0 if not after else crc32)

    def _headers_without_body(self) -> httpx.Headers:
        return httpx.Headers(
            [(k, v) for k, v in self._headers.multi_items() if k.lower() not in _OF_A_BODY]
        )

    def _build(
        self,
        method: str,
        gateway: httpx.URL,
        path: str,
        headers: httpx.Headers,
        content: bytes | None = None,
    ) -> httpx.Request:
        raw_path = gateway.raw_path.rstrip(b"/") + path.encode("ascii")
        headers = headers.copy()
        headers["host"] = gateway.netloc.decode("ascii")
        return httpx.Request(
            method,
            gateway.copy_with(raw_path=raw_path),
            headers=headers,
            content=content,
            extensions=self._extensions,
        )


def retry_after_s(response: httpx.Response) -> float:
    """The seconds that the response asks its client to wait; 0: it does not."""
    try:
        return float(response.headers.get("retry-after", "0"))
    except ValueError:  # a date
        return 0.0


def is_delimited(response: httpx.Response) -> bool:
    """Whether the body shows where it ends, so that a lost connection can't look like its end."""
    return (
        bool({"transfer-encoding", "content-length"} & set(response.headers))
        or response.extensions.get("http_version") == b"HTTP/2"
    )


def _may_retry(response: httpx.Response) -> bool:
    return bool(response.headers.get("x-should-retry") != "false")


def _is_stream(response: httpx.Response) -> bool:
    """Whether it is a stream whose events can be counted."""
    return (
        response.headers.get("content-type", "").startswith(_EVENTS)
        and response.headers.get("content-encoding", "identity") == "identity"
        and _JOB_ID in response.headers
    )


def _asks_for_stream(content: bytes) -> bool:
    if b'"stream"' not in content:
        return False
    try:
        body = json.loads(content)
    except ValueError:
        return False
    return isinstance(body, dict) and body.get("stream") is True


def _with_silence(timeout: object, silence_s: float) -> dict[str, float | None]:
    limits = dict(timeout) if isinstance(timeout, dict) else {}
    read = limits.get("read")
    limits["read"] = silence_s if read is None else min(read, silence_s)
    return limits

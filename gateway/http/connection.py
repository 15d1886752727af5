"""One connection of a client: uvicorn's, with limits on what it costs before its key is known.

The parser keeps what is no body (request line, headers, trailers) until it is complete; here is
what limits that, in bytes, number and time. What all connections may take together is
connections.py's business.

Every request of a connection learns when it ends. uvicorn marks only the newest one as
disconnected: a stream with another request queued behind it (pipelining) would go on writing to a
connection that has ended, and its job would go on without a client.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from gateway.http.auth import PEER, Peer, source_of
from gateway.http.connection_limits import Connections
from gateway.http.middleware import new_request_id
from shared.api.errors import (
    BadRequest,
    FlotillaError,
    HeadersTimeout,
    HeadersTooLarge,
    TooManyConnections,
)

_PIECE_BYTES = 16 << 10
"""What is parsed at once; the limits are looked at in between."""
_MOST_HEADERS = 200
_BODY = frozenset({b"content-length", b"transfer-encoding"})
_MOST_AHEAD = 16
"""Requests that may be sent before an earlier one is answered; each costs memory at once."""
_MOST_UNWANTED = 1 << 20
"""Bytes that are read of a client that has been refused."""
_READ_AHEAD = 4
"""So many queued requests a connection may have and still be read: only who reads sees its end."""


class Connection(HttpToolsProtocol):
    """As uvicorn's, which makes one for each connection that it accepts."""

    def __init__(self, all_connections: Connections, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self.source = ""
        """The client's address, as it is counted."""
        self.peer = Peer()
        self.app_state = {**self.app_state, PEER: self.peer}  # each request's `state` is a copy
        self.deadline = inf
        """While the client is waited for: until when, on the monotonic clock."""
        self.was_waiting = False
        """It was waited for at the last look, too."""
        self.kept_bytes = 0
        """Of an unfinished head, as far as it is counted."""
        self._all = all_connections
        self._unparsed = 0  # bytes that came since the latest end of a head or piece of a body
        self._in_head = False
        self._refused = False
        self._unwanted = 0  # bytes that came after the refusal
        self._upgrading = False  # what follows may be another protocol's, and is not read
        self._earlier: tuple[RequestResponseCycle, ...] = ()
        """Requests before the newest that may still be open. Empty unless a client pipelines."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.source = source_of(self.client[0]) if self.client else ""
        if self._all.has_room(self.connections):
            self._all.wait_for(self)
        else:
            self._refuse(TooManyConnections("This gateway has as many connections as it can."))
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.forget(self)
        for cycle in self._earlier:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self._earlier = ()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused or self._upgrading:
            # Read, so that the client gets to read its answer; not for ever, as reading costs time.
            self._unwanted += len(data)
            if self._unwanted > _MOST_UNWANTED:
                self.drop()
            return
        self._unset_keepalive_if_required()
        if len(data) <= _PIECE_BYTES:
            self._parse(data)
        else:
            for start in range(0, len(data), _PIECE_BYTES):
                self._parse(data[start : start + _PIECE_BYTES])
                if self._refused:
                    return
        if not self._busy():
            self._all.wait_for(self)

    def _busy(self) -> bool:
        """A request is being answered: it is not the client that is waited for."""
        return self.cycle is not None and not self.cycle.response_complete

    def _parse(self, data: bytes) -> None:
        self._unparsed += len(data)
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade:
            return  # answered as HTTP, see on_headers_complete; what follows is no HTTP
        except HttpParserError as error:
            cause = error.__context__
            if not isinstance(cause, FlotillaError):
                cause = BadRequest("This is not a valid HTTP request.")
            self._refuse(cause)
            return
        if self._unparsed > self._all.max_header_bytes or (
            self._in_head  # rare: most heads come in one piece
            and (len(self.headers) > _MOST_HEADERS or not self._all.may_keep(self, self._unparsed))
        ):
            self._refuse(self._too_large())

    # --- the parser's callbacks; what they raise reaches `_parse` as a HttpParserError ---

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        if len(self.headers) > _MOST_HEADERS:
            raise self._too_large()
        if self._unparsed > self._all.max_header_bytes:  # with a part of the body, it may be
            size = sum(len(name) + len(value) + 4 for name, value in self.headers)
            if len(self.url) + size > self._all.max_header_bytes:
                raise self._too_large()
        if len(self.pipeline) >= _MOST_AHEAD:
            raise BadRequest("Too many requests were sent before the first was answered.")
        if self.parser.should_upgrade() and any(
            name in _BODY and value != b"0" for name, value in self.headers
        ):
            # The parser takes the body for another protocol's.
            raise BadRequest("There is only HTTP/1.1 here: send a body without `Upgrade`.")
        before = self.cycle
        super().on_headers_complete()
        if self.pipeline:
            still_open = [cycle for cycle in self._earlier if not cycle.response_complete]
            self._earlier = (*still_open, before)
            if len(self.pipeline) <= _READ_AHEAD:
                self.flow.resume_reading()  # uvicorn has just paused it
        self._in_head = False
        self._unparsed = 0
        self.headers = []  # what still comes are trailers, which are not used
        self._all.serve(self)
        if self.parser.should_upgrade():
            self._upgrading = True
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        super().on_body(body)

    def _should_upgrade(self) -> bool:
        return False  # to whatever: there is only HTTP/1.1 here, and a server may ignore the wish

    # --- waiting for the client ---

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.peer.proven and not self._busy():
            self.cycle.body = bytearray()  # of a request that was refused
            self._all.wait_for(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        if not self.peer.proven:
            self._all.wait_for(self)  # it does not read its answers

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._busy():
            self._all.serve(self)

    def is_idle(self) -> bool:
        """Between two requests."""
        return self.timeout_keep_alive_task is not None

    def expire(self) -> None:
        """The client was waited for long enough."""
        if self._in_head and not self._refused and not self._busy():
            self._refuse(HeadersTimeout("The request's headers were not complete in time."))
        else:
            if not self._refused:
                self._all.count_closed("time")
            self.drop()

    def drop(self) -> None:
        """Close it without a word."""
        self._all.forget(self)
        self._refused = True
        self.transport.abort()

    # --- refusing ---

    def _too_large(self) -> HeadersTooLarge:
        limit = self._all.max_header_bytes
        return HeadersTooLarge(
            f"The request's headers are larger than {limit} bytes, or more than {_MOST_HEADERS}."
        )

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls if a request is none."""
        self._refuse(BadRequest(msg))

    def _refuse(self, error: FlotillaError) -> None:
        """Answer what is no request that the application could answer, and end the connection."""
        self._refused = True
        self._forget_head()
        self._all.count_refused(error)
        if self._busy():  # the answer to an earlier request is being written
            self.transport.close()
            self._all.linger(self)
            return
        if self.cycle is None or self._in_head:  # else: in a request that has its answer
            self._write(error)
        # Not closed yet: with unread bytes of the client the kernel would reset the connection,
        # and the client might not get to read the answer.
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._all.linger(self)

    def _forget_head(self) -> None:
        """Give back the memory of what the parser has kept."""
        self.parser = None  # type: ignore[assignment]  # as uvicorn does at the end
        self.headers = []

    def _write(self, error: FlotillaError) -> None:
        body = error.to_openai()
        fields = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            (b"x-request-id", new_request_id()),
            *error.headers(),
        ]
        head = b"".join(b"%b: %b\r\n" % field for field in fields)
        self.transport.write(STATUS_LINE[error.status] + head + b"\r\n" + body)

"""A client's connection: uvicorn's protocol, with limits on what a client without a key costs.

The parser keeps the request line, headers and trailers in memory until they are complete. This
class limits their size, number and time. The limits for all connections together are in
`connection_limits.py`. The methods and attributes of uvicorn's class are not public: its version is
bounded in pyproject.toml.

When a connection ends, all its requests are marked as disconnected. uvicorn marks only the newest:
with pipelining, an earlier stream would go on writing to the closed connection, and its job would
go on without a client.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade
from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.http.auth import PEER, Peer
from gateway.http.connection_limits import Connections
from gateway.http.half_closed import HalfClosed
from gateway.http.http10 import Http10Cycle
from gateway.http.middleware import new_request_id
from shared.job import errors
from shared.job.errors import BadRequest, FlotillaError, HeadersTimeout, HeadersTooLarge

_PARSE_BYTES = 16 << 10
"""Bytes given to the parser at once; the limits are checked in between."""
_MAX_HEADERS, _MAX_HEADER_BYTES = 200, 32 << 10
"""Lines and bytes of a request line and its headers together."""
_BODY_HEADERS = frozenset({b"content-length", b"transfer-encoding"})
_MAX_PIPELINED = 16
"""Requests that may be sent before the first is answered; each takes memory when it arrives."""
_MAX_DISCARDED_BYTES = 1 << 20
"""Bytes that are read and discarded after a client was refused."""
_READ_WHILE_PIPELINED = 4
"""Up to this many queued requests the connection is still read, to detect when it is closed.

uvicorn stops reading at the first one."""


class Connection(HttpToolsProtocol):
    """uvicorn makes one for each connection that it accepts."""

    # Slots: with more than 30 attributes, the dict of each instance would take 1.4 KB for its keys.
    __slots__ = (
        "_all",
        "_body_head",
        "_discarded_bytes",
        "_earlier",
        "_in_head",
        "_refused",
        "_unparsed",
        "_unsent_bytes",
        "deadline",
        "peer",
    )

    def __init__(self, all_connections: Connections, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self.peer = Peer()
        # uvicorn copies it into the `state` of each request.
        self.app_state = {**self.app_state, PEER: self.peer}
        self.deadline = inf
        """Monotonic time by which the client has to send or read something; infinite: no limit."""
        self._all = all_connections
        self._unparsed = 0  # bytes since the last end of a head or part of a body
        self._in_head = False
        self._body_head = b""
        """After the head of a request with a body and an offer in `Upgrade`: another head without
        the offer, for the parser to read the body by. Else empty."""
        self._unsent_bytes = 0  # when the client was last waited for to read
        self._refused = False
        self._discarded_bytes = 0  # bytes after the refusal
        self._earlier: tuple[RequestResponseCycle, ...] = ()
        """Requests before the newest that may not be answered yet. Empty without pipelining."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by asyncio: refuse the connection if there are too many."""
        super().connection_made(transport)
        if self._all.has_room(self.connections):
            self._all.wait_for(self)
        else:
            self._refuse(
                errors.TooManyConnections(
                    "This gateway has reached its limit of connections; try again later."
                )
            )
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio: mark all requests of the connection as disconnected."""
        self._all.forget(self)
        for cycle in self._earlier:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self._earlier = ()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio: parse what the client has sent."""
        if self._refused:
            # Still read: closing with unread data resets the connection, and the client could lose
            # its answer. Limited, because reading costs time.
            self._discarded_bytes += len(data)
            if self._discarded_bytes > _MAX_DISCARDED_BYTES:
                self.drop()
            return
        self._unset_keepalive_if_required()
        if len(data) <= _PARSE_BYTES:
            self._parse(data)
        else:
            for start in range(0, len(data), _PARSE_BYTES):
                self._parse(data[start : start + _PARSE_BYTES])
                if self._refused:
                    return
        if not self._busy():
            self._all.wait_for(self)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Called by asyncio: the client sends no more; whether the connection stays open."""
        if self._refused or self._in_head or not self._busy() or self.cycle.more_body:
            return False
        self.cycle.keep_alive = False
        HalfClosed(self.transport, (*self._earlier, self.cycle)).check()
        return True

    def _busy(self) -> bool:
        """A request is being answered, so the client has no deadline."""
        return self.cycle is not None and not self.cycle.response_complete

    def _parse(self, data: bytes) -> None:
        self._unparsed += len(data)
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as offer:
            # The offer is ignored. The parser takes what follows the head for the other protocol.
            (n_parsed,) = offer.args
            self._unparsed = 0
            if rest := self._body_head + data[n_parsed:]:
                self._parse(rest)
            return
        except HttpParserError as error:
            cause = error.__context__
            if not isinstance(cause, FlotillaError):
                cause = BadRequest("This is not a valid HTTP request.")
            self._refuse(cause)
            return
        if self._unparsed > _MAX_HEADER_BYTES or (
            self._in_head and len(self.headers) > _MAX_HEADERS
        ):
            self._refuse(self._too_large())

    # --- callbacks of the parser; exceptions reach `_parse` as the context of HttpParserError ---

    def on_message_begin(self) -> None:
        """Called by the parser at the first byte of a request."""
        if self._body_head:
            return
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        """Called by the parser: check the limits, then start the application."""
        if self._body_head:
            self._body_head = b""
            return
        if len(self.headers) > _MAX_HEADERS:
            raise self._too_large()
        if self._unparsed > _MAX_HEADER_BYTES:  # perhaps with a part of the body
            size = sum(len(name) + len(value) + 4 for name, value in self.headers)
            if len(self.url) + size > _MAX_HEADER_BYTES:
                raise self._too_large()
        if len(self.pipeline) >= _MAX_PIPELINED:
            raise BadRequest(
                f"At most {_MAX_PIPELINED} requests may be sent before the first is answered."
            )
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":  # what follows is not HTTP
                raise BadRequest("This server is no proxy.")
            framing = [b"%b: %b\r\n" % each for each in self.headers if each[0] in _BODY_HEADERS]
            if framing:
                self._body_head = b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(framing)
        before = self.cycle
        super().on_headers_complete()
        if self.pipeline:
            still_open = [cycle for cycle in self._earlier if not cycle.response_complete]
            self._earlier = (*still_open, before)
            if len(self.pipeline) <= _READ_WHILE_PIPELINED:
                self.flow.resume_reading()  # uvicorn has just paused it
        self._in_head = False
        self._unparsed = 0
        self.headers = []  # from here on they are trailers, which are not used
        self._all.serve(self)
        if self.scope["http_version"] != "1.1":
            self.cycle.__class__ = Http10Cycle
            self.cycle.waiting_for_100_continue = False

    def on_body(self, body: bytes) -> None:
        """Called by the parser for each part of a body."""
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Called by the parser at the end of a body."""
        if not self._body_head:
            super().on_message_complete()

    def _should_upgrade(self) -> bool:
        return False  # only HTTP/1.1 is supported, and a server may ignore `Upgrade`

    # --- deadlines ---

    def on_response_complete(self) -> None:
        """Called by uvicorn: the client has to send the next request."""
        super().on_response_complete()
        if not self.peer.authenticated and not self._busy():
            self.cycle.body = bytearray()  # the body of a refused request is not needed
            self._all.wait_for(self)

    def pause_writing(self) -> None:
        """Called by asyncio: the client does not read fast enough."""
        super().pause_writing()
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self._all.wait_for_reader(self)

    def resume_writing(self) -> None:
        """Called by asyncio: the client has read enough."""
        super().resume_writing()
        if self._busy() or self.peer.authenticated:
            self._all.serve(self)

    def write_paused(self) -> bool:
        """The client has to read before more of its answer is written."""
        return bool(self.flow.write_paused)

    def expire(self) -> None:
        """The deadline has passed: refuse an unfinished request, or close the connection."""
        if self.write_paused() and not self._refused:
            unsent_bytes = self.transport.get_write_buffer_size()
            if unsent_bytes < self._unsent_bytes:  # it reads, slowly
                self._unsent_bytes = unsent_bytes
                self._all.wait_for_reader(self)
            else:
                self._all.count_closed("write")
                self.drop()
        elif self._in_head and not self._refused and not self._busy():
            self._refuse(HeadersTimeout("The headers of the request did not arrive in time."))
        else:
            if not self._refused:
                self._all.count_closed("time")
            self.drop()

    def drop(self) -> None:
        """Close the connection without an answer."""
        self._all.forget(self)
        self._refused = True
        self.transport.abort()

    # --- refusing ---

    def _too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(
            f"The headers of the request exceed the limit of {_MAX_HEADER_BYTES} bytes or "
            f"{_MAX_HEADERS} lines."
        )

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn if a request is invalid."""
        self._refuse(BadRequest(msg))

    def _refuse(self, error: FlotillaError) -> None:
        """Answer with `error` instead of calling the application, and end the connection."""
        self._refused = True
        self._forget_head()
        self._all.count_refused(error)
        if self._busy():  # an earlier request is being answered
            self.transport.close()
            self._all.linger(self)
            return
        if self.cycle is None or self._in_head:  # else: inside of a request that has been answered
            self._write(error)
        # Not closed yet: with unread data the kernel would reset the connection, and the client
        # could lose the answer.
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._all.linger(self)

    def _forget_head(self) -> None:
        """Free the memory of the parser."""
        self.parser = None  # type: ignore[assignment]  # uvicorn does the same at the end
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
        status = httptools_impl.STATUS_LINE[error.status]
        self.transport.write(status + head + b"\r\n" + body)

"""A client's connection: uvicorn's, except that every request on it learns when it ends.

uvicorn marks only the newest request of a connection as disconnected. A stream with another request
queued behind it (pipelining) would go on writing to a connection that has ended, and its job would
go on for nobody.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

_READ_AHEAD = 4
"""So many queued requests a connection may have and still be read: only who reads sees its end."""


class Connection(HttpToolsProtocol):
    """Give it to uvicorn as its `http`."""

    _earlier: tuple[RequestResponseCycle, ...] = ()
    """Requests before the newest one that may still be open. Empty unless a client pipelines."""
    _upgrading = False
    """A request asked for an upgrade: what follows it may be anything, and is not read."""

    def data_received(self, data: bytes) -> None:
        """The client has sent something."""
        if not self._upgrading:
            super().data_received(data)

    def on_headers_complete(self) -> None:
        """httptools has read a request's head."""
        before = self.cycle
        super().on_headers_complete()
        if self.parser.should_upgrade():
            # httptools takes no body of such a request: read on, and it would be the next request,
            # whose answer a proxy in front would give to somebody else.
            self._upgrading = True
            self.cycle.keep_alive = False
        if self.pipeline:
            still_open = [cycle for cycle in self._earlier if not cycle.response_complete]
            self._earlier = (*still_open, before)
            if len(self.pipeline) <= _READ_AHEAD:
                self.flow.resume_reading()  # uvicorn has just paused it

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport has ended, or is about to."""
        for cycle in self._earlier:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self._earlier = ()
        super().connection_lost(exc)

    def _unsupported_upgrade_warning(self) -> None:
        """The request is answered as if it had not asked for an upgrade, as HTTP wants it; uvicorn
        would log two lines for it, with the advice to install a WebSocket library."""

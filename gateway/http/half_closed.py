"""Half-closed connections: the client has ended its sending side. It may still read, or have left.

TCP shows both in the same way. Only data tells them apart: a closed socket answers it with a reset.
So bytes that the answer has anyway are sent before it is there, one by one: of `HTTP/1.1 ` before
an answer, and zeros in front of the size of the next chunk within one.
"""

from __future__ import annotations

import asyncio
import socket
from time import monotonic
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_FIRST = b"HTTP/1.1 "
"""What each answer begins with."""
_MOST_BYTES = len(_FIRST)  # a chunk's size has 16 digits at most, for most clients
_FIRST_S = 0.01
"""Seconds between the first two; four times as long between the next, so the last is at 4 min."""


class ProbedTransport:
    """A transport to which the first bytes of an answer are written before the answer is there."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._n_sent = 0

    def probe(self) -> None:
        """Write the next one."""
        self._transport.write(_FIRST[self._n_sent : self._n_sent + 1])
        self._n_sent += 1

    def write(self, data: bytes) -> None:
        """Write the rest of the answer's head, and then what follows it."""
        self._transport.write(data[self._n_sent :])
        self._n_sent = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class HalfClosed:
    """Aborts a half-closed connection when its client has closed the other side too."""

    def __init__(
        self, transport: asyncio.Transport, cycles: tuple[RequestResponseCycle, ...]
    ) -> None:
        """`cycles`: its requests, the oldest first."""
        self._transport = transport
        self._cycles = cycles
        self._n_probes = 0
        self._probe_at = 0.0  # on the monotonic clock
        self._wait_s = _FIRST_S

    def check(self) -> None:
        """Check now and until the last request is answered: soon again at first, then each second.

        Several bytes, as the first one may reach a proxy that has yet to learn of the reset, and
        the client may leave later.
        """
        if self._transport.is_closing():  # its descriptor may be another client's soon
            return
        connection = self._transport.get_extra_info("socket")
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._transport.abort()
            return
        waiting = [cycle for cycle in self._cycles if not cycle.response_complete]
        if waiting and self._n_probes < _MOST_BYTES and monotonic() >= self._probe_at:
            self._probe(waiting[0])
            self._probe_at = monotonic() + _FIRST_S * 4**self._n_probes
            self._n_probes += 1
        asyncio.get_running_loop().call_later(self._wait_s, self.check)
        self._wait_s = min(1.0, 2 * self._wait_s)

    def _probe(self, cycle: RequestResponseCycle) -> None:
        if self._transport.get_write_buffer_size():
            return  # data that waits shows it too
        if cycle.response_started:
            if cycle.chunked_encoding:
                self._transport.write(b"0")
            return
        if not isinstance(cycle.transport, ProbedTransport):
            cycle.transport = cast(asyncio.Transport, ProbedTransport(self._transport))
        cast(ProbedTransport, cycle.transport).probe()

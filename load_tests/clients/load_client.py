"""The load client: one thread, `epoll`, plain sockets.

`python -m load_tests.clients.load_client` reads a `LoadSpec` (one line of JSON) from stdin and
prints a `LoadResult` (JSON). It is a process of its own, so that its CPU time is not counted as a
server's, and it does little per token: one `recv`, one clock reading, one count of bytes. An
asyncio client would cost as much as the servers that it measures.

`connections` requests are open at any time until `requests` have been answered, or time is up.

Times are seconds of the monotonic clock. The time to the first token is counted from the last byte
of the request to the first event of the response; every server sends its first event with the first
token. A gap is the time between two reads that contained events; further events of the same read
have gaps of 0.
"""

from __future__ import annotations

import gc
import json
import math
import select
import socket
import sys
import time
from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from statistics import pstdev
from typing import Any

from load_tests.clients.response_parser import ResponseParser
from load_tests.harness.spread import percentile

_READ_BYTES = 1 << 15
_CONNECT_S = 10.0
_POLL_S = 0.2
_SHOWN_PROBLEMS = 5


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """What one run of the client sends, and what it checks."""

    ports: tuple[int, ...]
    body: str
    path: str = "/v1/chat/completions"
    connections: int = 1
    requests: int = 1
    ramp_s: float = 0.0
    """Seconds between the first requests of two connections, so that not all start at once."""
    tokens: int = 1
    """Tokens of each response; only used to count them."""
    events: int = 0
    """What a streamed response must have, `[DONE]` included; 0 if it is not streamed."""
    least_events: int = 0
    """Fewest events, where one event may carry several tokens; 0: exactly `events`."""
    contains: str = ""
    """Text that a response that is not streamed must contain."""
    timeout_s: float = 60.0


@dataclass(slots=True)
class LoadResult:
    """What one run measured. Times are seconds; NaN means not measured."""

    done: int = 0
    """Responses that passed all checks."""
    errors: int = 0
    problems: list[str] = field(default_factory=list)
    """The most common reasons for errors."""
    tokens: int = 0
    wall_s: float = 0.0
    ttft_p50_s: float = math.nan
    ttft_p99_s: float = math.nan
    gap_sd_s: float = math.nan
    """Standard deviation of the gaps."""
    cpu_s: float = 0.0
    """CPU seconds of the client itself."""


class _Connection:
    __slots__ = ("first", "last", "port", "response", "reused", "sent", "socket")

    def __init__(self, port: int) -> None:
        self.port = port
        self.socket = socket.create_connection(("127.0.0.1", port), _CONNECT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.reused = False
        self.response: ResponseParser | None = None
        self.sent = self.first = self.last = 0.0


class LoadClient:
    """Runs one LoadSpec."""

    def __init__(self, spec: LoadSpec, parser: type[ResponseParser] = ResponseParser) -> None:
        self._spec = spec
        self._parser = parser
        self._request = _request(spec)
        self._epoll = select.epoll()
        self._connections: dict[int, _Connection] = {}
        self._free: deque[_Connection] = deque()
        self._result = LoadResult()
        self._problems: Counter[str] = Counter()
        self._ttft: list[float] = []
        self._gaps: list[float] = []
        self._no_gaps = 0
        self._n_started = 0
        self._n_ended = 0
        self._n_opened = 0

    def run(self) -> LoadResult:
        """Send the load and wait for the responses, at most `timeout_s` seconds."""
        cpu_s, began = time.process_time(), time.perf_counter()
        until = began + self._spec.timeout_s
        self._send_all(began, until)
        return self._finish(time.perf_counter() - began, time.process_time() - cpu_s)

    def _send_all(self, began: float, until: float) -> None:
        spec = self._spec
        to_open = min(spec.connections, spec.requests)
        due = began
        while self._n_ended < spec.requests and (now := time.perf_counter()) < until:
            while to_open and now >= due:
                to_open -= 1
                due += spec.ramp_s
                self._start(self._connect())
            while self._free and self._n_started + to_open < spec.requests:
                self._start(self._free.popleft())
            self._poll_once(due - now if to_open else _POLL_S)

    def _connect(self) -> _Connection:
        ports = self._spec.ports
        connection = _Connection(ports[self._n_opened % len(ports)])
        self._n_opened += 1
        self._connections[connection.socket.fileno()] = connection
        self._epoll.register(connection.socket.fileno(), select.EPOLLIN)
        return connection

    def _start(self, connection: _Connection) -> None:
        self._n_started += 1
        self._send(connection)

    def _send(self, connection: _Connection) -> None:
        connection.response = self._parser()
        connection.first = 0.0
        try:
            n_sent = connection.socket.send(self._request)
            if n_sent < len(self._request):
                connection.socket.settimeout(_CONNECT_S)
                connection.socket.sendall(self._request[n_sent:])
                connection.socket.setblocking(False)
        except OSError:
            pass  # the next read finds that the connection is closed
        connection.sent = time.perf_counter()

    def _poll_once(self, wait_s: float) -> None:
        """Wait at most `wait_s` for data and handle it."""
        for fd, _ in self._epoll.poll(max(0.0, wait_s)):
            connection = self._connections[fd]
            try:
                data = connection.socket.recv(_READ_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            now = time.perf_counter()
            response = connection.response
            if not data or response is None:
                self._on_close(connection, now)
                continue
            new = response.feed(data)
            if new:
                if connection.first:
                    self._gaps.append(now - connection.last)
                    self._no_gaps += new - 1
                else:
                    connection.first = now
                    self._ttft.append(now - connection.sent)
                    self._no_gaps += new - 1
                connection.last = now
            if response.done:
                self._on_response(connection, response, now)

    def _on_response(self, connection: _Connection, response: ResponseParser, now: float) -> None:
        self._n_ended += 1
        connection.response = None
        problem = _problem(self._spec, response)
        if problem:
            self._problems[problem] += 1
        else:
            self._result.done += 1
            self._result.tokens += self._spec.tokens
            if not self._spec.events:
                self._ttft.append(now - connection.sent)
        if response.closing:
            self._close(connection)
            connection = self._connect()
        connection.reused = True
        self._free.append(connection)

    def _on_close(self, connection: _Connection, now: float) -> None:
        """The server closed the connection, or sent data without a request."""
        response = connection.response
        self._close(connection)
        if response is None:
            if connection in self._free:
                self._free.remove(connection)
                self._free.append(self._connect())
            return
        if connection.reused and not response.started:
            # The server closed an idle kept-alive connection: send the request again.
            self._send(self._connect())
            return
        response.end()
        if response.done:
            response.closing = False
            replacement = self._connect()
            replacement.sent = connection.sent
            self._on_response(replacement, response, now)
            return
        self._n_ended += 1
        self._problems["the connection closed before the end of the response"] += 1
        self._free.append(self._connect())

    def _close(self, connection: _Connection) -> None:
        del self._connections[connection.socket.fileno()]
        connection.socket.close()

    def _finish(self, wall_s: float, cpu_s: float) -> LoadResult:
        result = self._result
        if missing := self._spec.requests - self._n_ended:
            self._problems["not answered in time"] += missing
        result.errors = self._problems.total()
        result.problems = [
            f"{n}x {problem}" for problem, n in self._problems.most_common(_SHOWN_PROBLEMS)
        ]
        result.wall_s, result.cpu_s = wall_s, cpu_s
        result.ttft_p50_s, result.ttft_p99_s = (percentile(self._ttft, at) for at in (0.5, 0.99))
        self._gaps.extend([0.0] * self._no_gaps)
        result.gap_sd_s = pstdev(self._gaps) if self._gaps else math.nan
        for connection in list(self._connections.values()):
            self._close(connection)
        self._epoll.close()
        return result


def _request(spec: LoadSpec) -> bytes:
    body = spec.body.encode()
    headers = {
        "Host": f"127.0.0.1:{spec.ports[0]}",
        "Content-Type": "application/json",
        "Accept": "*/*",
        "Content-Length": str(len(body)),
    }
    lines = [f"POST {spec.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def _problem(spec: LoadSpec, response: ResponseParser) -> str:
    """Return why a response is wrong, or an empty string."""
    if response.status != 200:
        return f"status {response.status}: {response.body[:200]!r}"
    enough = spec.least_events and response.events >= spec.least_events
    if response.events != spec.events and not enough:
        return f"{response.events} events instead of {spec.events}"
    if spec.contains.encode() not in response.body:
        return f"no {spec.contains!r} in {response.body[:200]!r}"
    return ""


def parse_spec(data: dict[str, Any]) -> LoadSpec:
    """Make a LoadSpec of decoded JSON."""
    return LoadSpec(**{**data, "ports": tuple(data["ports"])})


def main() -> None:
    """Read a spec from stdin, run it, print the result."""
    gc.disable()
    spec = parse_spec(json.loads(sys.stdin.readline()))
    print(json.dumps(asdict(LoadClient(spec).run())), flush=True)


if __name__ == "__main__":
    main()

"""Attacks by size and number: large bodies and headers, many connections, wrong keys."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections import Counter
from collections.abc import Callable
from functools import cache

from load_tests.faults.hostile.attack import Attack, AttackTarget, Prepare, summarize
from load_tests.faults.hostile.raw_http import exchange, is_reachable, read_answer, request
from load_tests.systems.engine import CHAT_PATH, MODEL

BODY_BYTES = (8 << 20) - 4096
"""About the largest body that the gateway accepts."""
_TIMES = 3
_BETWEEN_S = 0.5
_CONNECTIONS = 300
DESCRIPTORS = 256
"""Limit of the gateway's open files."""
_GUESSING_S = 3.0
_NOTHING_S = 3.0
_HEAD = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n"


def nothing(target: AttackTarget) -> str:
    """No request: the figures for comparison."""
    time.sleep(_NOTHING_S)
    return "-"


def large_body(member: str, model: str = MODEL, times: int = _TIMES) -> Attack:
    """Return an attack that sends 8 MB of one repeated JSON value, `times` times; see `fill`."""

    def attack(target: AttackTarget) -> str:
        data = request("POST", CHAT_PATH, fill(member, model))
        answers = []
        for _ in range(times):
            answers.append(exchange(target.port, data))
            time.sleep(_BETWEEN_S)
        return summarize(answers)

    return attack


def fill(member: str, model: str) -> bytes:
    """Return a JSON body of nearly 8 MB.

    `member` is like `"messages": [{}...]`: the value before the dots is repeated. A `#` in it is
    replaced by a running number.
    """
    name, _, rest = member.partition(": ")
    opening, value, closing = rest[0], rest[1 : rest.index("...")], rest[-1]
    head = f'{{"model": {json.dumps(model)}, "max_tokens": 1, {name}: {opening}'
    if "#" in value:
        n = BODY_BYTES // (len(value) + 7)
        values = ",".join(value.replace("#", f"{i:07}") for i in range(n))
    else:
        values = ",".join([value] * (BODY_BYTES // (len(value) + 1)))
    return f"{head}{values}{closing}}}".encode()


@cache
def one_header() -> bytes:
    """Return a request with one header of 100 MB."""
    return _HEAD + b"x-large: " + b"a" * 100_000_000 + b"\r\n\r\n"


@cache
def short_headers() -> bytes:
    """Return a request with 40 MB of short headers."""
    return _HEAD + b"".join(b"x-%07d: v\r\n" % n for n in range(40_000_000 // 14)) + b"\r\n"


def send_headers(make: Callable[[], bytes]) -> tuple[Attack, Prepare]:
    """Return an attack with very large headers and no API key, and its preparation.

    The bytes are made in the preparation, because making them would stall the threads of this
    process that watch other streams.
    """

    def prepare(target: AttackTarget) -> None:
        make()

    return lambda target: summarize([exchange(target.port, make())]), prepare


def half_a_header(target: AttackTarget) -> str:
    """Open many connections that send half a header, without an API key, and then nothing."""
    return _hold_connections(target, b"GET /v1/models HTTP/1.1\r\nhost: te")


def upgrade(target: AttackTarget) -> str:
    """Open many connections that send a WebSocket upgrade by POST, without a key, then nothing."""
    fields = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    data = request("POST", CHAT_PATH, key=None, headers=fields)
    data = data.replace(b"content-length: 0", b"content-length: 10")  # bytes that are never sent
    return _hold_connections(target, data)


def guess_keys(target: AttackTarget) -> str:
    """Try wrong API keys on one connection, as fast as possible."""
    found: Counter[str] = Counter()
    until = time.monotonic() + _GUESSING_S
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", target.port), 5) as c:
        n = 0
        while time.monotonic() < until and "closed" not in found:
            n += 1
            c.sendall(request("GET", "/v1/models", key=f"guess-{n}"))
            found[read_answer(c)[0]] += 1
    rate = sum(found.values()) / _GUESSING_S
    shown = ", ".join(f"{count} x {status}" for status, count in found.items())
    return f"{shown or 'no answer'}; {rate:.0f} a second"


def _hold_connections(target: AttackTarget, data: bytes) -> str:
    """Hold many connections open; report whether other clients can connect, how many stay open."""
    connections: list[socket.socket] = []
    with contextlib.ExitStack() as stack:
        for _ in range(_CONNECTIONS):
            with contextlib.suppress(OSError):
                connection = socket.create_connection(("127.0.0.1", target.port), 5.0)
                connections.append(stack.enter_context(connection))
                connection.sendall(data)
        time.sleep(1.0)
        at_once = is_reachable(target.port)
        time.sleep(target.idle_s)
        later = is_reachable(target.port)
        n_open = sum(map(_is_open, connections))
    return (
        f"{len(connections)} connected; others can connect: {_yes(at_once)}, after "
        f"{target.idle_s:.0f} s {_yes(later)}; {n_open} still open"
    )


def _is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while connection.recv(1 << 16):
            pass
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _yes(value: bool) -> str:
    return "yes" if value else "NO"

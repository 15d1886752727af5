"""Requests with which one client may harm others. Each attack returns the server's answer."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

from load_tests.faults.hostile.raw_http import (
    RawResponse,
    exchange,
    is_reachable,
    read_answer,
    request,
)
from load_tests.systems.engine import CHAT_PATH, MODEL

_BODY_BYTES = (8 << 20) - 4096
"""About the largest body that the gateway accepts."""
_TIMES = 3
_BETWEEN_S = 0.5
_CONNECTIONS = 300
DESCRIPTORS = 256
"""Soft and hard limit of the gateway's open files."""
_GUESSING_S = 3.0
_NOTHING_S = 3.0
_LONG_S = 120.0
_PROMPTS = 1024
_MAX_MESSAGE = 80


@dataclass(frozen=True, slots=True)
class AttackTarget:
    """The server that is attacked."""

    port: int
    gateway_pid: int
    idle_s: float
    """How long idle connections are kept open."""
    model: str = MODEL


Attack = Callable[[AttackTarget], str]
Prepare = Callable[[AttackTarget], None]


@dataclass(frozen=True, slots=True)
class HostileRequest:
    """One row of the table: a request, or several."""

    title: str
    attack: Attack
    prepare: Prepare = lambda target: None
    """Runs before the measurement."""
    expected: str = ""
    """What the response must contain."""


def large_body(member: str, model: str | None = None, times: int = _TIMES) -> Attack:
    """Return an attack that sends 8 MB of one repeated JSON value, `times` times; see `fill`."""

    def attack(target: AttackTarget) -> str:
        data = request("POST", CHAT_PATH, fill(member, model or target.model))
        return summarize(_repeat(times, lambda: exchange(target.port, data)))

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
        n = _BODY_BYTES // (len(value) + 7)
        values = ",".join(value.replace("#", f"{i:07}") for i in range(n))
    else:
        values = ",".join([value] * (_BODY_BYTES // (len(value) + 1)))
    return f"{head}{values}{closing}}}".encode()


def list_jobs(query: str, times: int = 1) -> Attack:
    """Return an attack that lists jobs, `times` requests at the same time."""

    def attack(target: AttackTarget) -> str:
        data = request("GET", f"/jobs?{query}")
        return summarize(at_once([lambda: exchange(target.port, data)] * times))

    return attack


def submit_large_jobs(n: int) -> Prepare:
    """Return a preparation: n jobs with a prompt of nearly 8 MB. They fail; their records stay."""

    def prepare(target: AttackTarget) -> None:
        content = "x" * (_BODY_BYTES - 1000)
        inner = {"model": MODEL, "messages": [{"role": "user", "content": content}]}
        data = request("POST", "/jobs", json.dumps({"body": inner}).encode())
        for _ in range(n):
            response = exchange(target.port, data)
            if response.status != "202":
                raise RuntimeError(f"a job was answered with {response.status}")

    return prepare


_HEAD = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n"


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
    return hold_connections(target, b"GET /v1/models HTTP/1.1\r\nhost: te")


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
    return hold_connections(target, data)


def hold_connections(target: AttackTarget, data: bytes) -> str:
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


def nothing(target: AttackTarget) -> str:
    """No request: the figures for comparison."""
    time.sleep(_NOTHING_S)
    return "-"


def truncated_prompt(target: AttackTarget) -> str:
    """Send a prompt of 4 MB that is to be truncated to 16 tokens."""
    body = {
        "model": target.model,
        "prompt": "one two " * (1 << 19),
        "truncate_prompt_tokens": 16,
        "max_tokens": 1,
    }
    data = request("POST", "/v1/completions", json.dumps(body).encode())
    return summarize([exchange(target.port, data)])


def short_prompts(target: AttackTarget) -> str:
    """Send 8 MB of prompts that each fit into the model, as many as vLLM accepts."""
    prompt = "one two three " * (_BODY_BYTES // _PROMPTS // 14 - 1)
    body = {"model": target.model, "prompt": [prompt] * _PROMPTS, "max_tokens": 1}
    data = request("POST", "/v1/completions", json.dumps(body).encode())
    return summarize([exchange(target.port, data, _LONG_S)])


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


def _repeat(times: int, do: Callable[[], RawResponse]) -> list[RawResponse]:
    found = []
    for _ in range(times):
        found.append(do())
        time.sleep(_BETWEEN_S)
    return found


def at_once(calls: Sequence[Callable[[], RawResponse]]) -> list[RawResponse]:
    """Make all calls at the same time, each in a thread."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(lambda each: each(), calls))


def summarize(answers: Iterable[RawResponse]) -> str:
    """Return statuses, error message, longest time and bytes sent as text for the table."""
    answers = list(answers)
    statuses = Counter(response.status for response in answers)
    shown = ", ".join(f"{n} x {s}" if n > 1 else s for s, n in statuses.items())
    slowest = max(answers, key=lambda response: response.seconds)
    error = next((message(a.body) for a in answers if a.status[0] in "45"), "")
    reason = f" ({error})" if error else ""
    return f"{shown}{reason} in {slowest.seconds:.1f} s, {slowest.sent / 1e6:.1f} MB sent"


def message(body: bytes) -> str:
    """Return the beginning of an error's message."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        text = str(json.loads(body)["error"]["message"])
        return " ".join(text.replace("|", "/").split())[:_MAX_MESSAGE]
    return ""

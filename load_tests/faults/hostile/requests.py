"""Requests that one client can send to harm others. Each attack returns what it was answered."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

from load_tests.faults.checked_request import CHAT
from load_tests.faults.hostile.raw_http import (
    Answered,
    can_connect,
    exchange,
    read_answer,
    request,
)
from load_tests.systems.engine import MODEL

_BODY_BYTES = (8 << 20) - 4096
"""As large as a body may be."""
_TIMES = 3
_BETWEEN_S = 0.5
_OPEN = 300
DESCRIPTORS = 256
"""Of the gateway: soft and hard limit."""
_GUESSING_S = 3.0
_NOTHING_S = 3.0
_LONG_S = 120.0
_PROMPTS = 1024
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Target:
    """What an attack needs to know."""

    port: int
    gateway_pid: int
    patience_s: float
    """How long a connection that says nothing is looked at."""
    model: str = MODEL


Attack = Callable[[Target], str]
Prepare = Callable[[Target], None]


@dataclass(frozen=True, slots=True)
class Hostile:
    """One row of the table."""

    title: str
    attack: Attack
    prepare: Prepare = lambda target: None
    """What happens before, and is not measured."""


def large_body(member: str, model: str | None = None, times: int = _TIMES) -> Attack:
    """8 MB of one JSON value, several times. What `member` is: see `fill`."""

    def attack(target: Target) -> str:
        data = request("POST", CHAT, fill(member, model or target.model))
        return told(_repeat(times, lambda: exchange(target.port, data)))

    return attack


def fill(member: str, model: str) -> bytes:
    """A body of nearly 8 MB. `member` is like `"messages": [{}...]`: the value is repeated."""
    name, _, rest = member.partition(": ")
    opening, value, closing = rest[0], rest[1 : rest.index("...")], rest[-1]
    head = f'{{"model": {json.dumps(model)}, "max_tokens": 1, {name}: {opening}'
    if "#" in value:
        n = _BODY_BYTES // (len(value) + 7)
        values = ",".join(value.replace("#", f"{i:07}") for i in range(n))
    else:
        values = ",".join([value] * (_BODY_BYTES // (len(value) + 1)))
    return f"{head}{values}{closing}}}".encode()


def list_jobs(query: str, at_once: int = 1) -> Attack:
    """GET /jobs, several at a time."""

    def attack(target: Target) -> str:
        data = request("GET", f"/jobs?{query}")
        return told(_at_once(at_once, lambda: exchange(target.port, data)))

    return attack


def submit_large_jobs(n: int) -> Prepare:
    """Jobs with a prompt of nearly 8 MB; the engine refuses them, the records stay."""

    def prepare(target: Target) -> None:
        content = "x" * (_BODY_BYTES - 1000)
        inner = {"model": MODEL, "messages": [{"role": "user", "content": content}]}
        data = request("POST", "/jobs", json.dumps({"body": inner}).encode())
        for _ in range(n):
            answered = exchange(target.port, data)
            if answered.status != "202":
                raise RuntimeError(f"a job was answered {answered.status}")

    return prepare


_HEAD = b"GET /v1/models HTTP/1.1\r\nhost: test\r\n"


@cache
def one_header() -> bytes:
    return _HEAD + b"x-large: " + b"a" * 100_000_000 + b"\r\n\r\n"


@cache
def short_headers() -> bytes:
    return _HEAD + b"".join(b"x-%07d: v\r\n" % n for n in range(40_000_000 // 14)) + b"\r\n"


def send_headers(make: Callable[[], bytes]) -> tuple[Attack, Prepare]:
    """Headers of many megabytes, without a key. They are made before the streams are watched:
    whoever makes them keeps the watching threads of this process waiting."""

    def prepare(target: Target) -> None:
        make()

    return lambda target: told([exchange(target.port, make())]), prepare


def half_a_header(target: Target) -> str:
    """Many connections that send half a header, without a key, and then nothing."""
    return silent(target, b"GET /v1/models HTTP/1.1\r\nhost: te")


def upgrade(target: Target) -> str:
    """Many connections that ask to become a WebSocket by POST, without a key, then nothing."""
    fields = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    data = request("POST", CHAT, key=None, headers=fields)
    data = data.replace(b"content-length: 0", b"content-length: 10")  # which never come
    return silent(target, data)


def silent(target: Target, data: bytes) -> str:
    """Do others get in while so many connections are open, and does the server end them?"""
    connections: list[socket.socket] = []
    with contextlib.ExitStack() as stack:
        for _ in range(_OPEN):
            with contextlib.suppress(OSError):
                connection = socket.create_connection(("127.0.0.1", target.port), 5.0)
                connections.append(stack.enter_context(connection))
                connection.sendall(data)
        time.sleep(1.0)
        at_once = can_connect(target.port)
        time.sleep(target.patience_s)
        later = can_connect(target.port)
        n_open = sum(map(_is_open, connections))
    return (
        f"{len(connections)} connected; others get in: {_yes(at_once)}, after "
        f"{target.patience_s:.0f} s {_yes(later)}; {n_open} still open"
    )


def nothing(target: Target) -> str:
    """What the figures are without an attack."""
    time.sleep(_NOTHING_S)
    return "-"


def truncated_prompt(target: Target) -> str:
    """4 MB of prompt of which 16 tokens are to be used."""
    body = {
        "model": target.model,
        "prompt": "one two " * (1 << 19),
        "truncate_prompt_tokens": 16,
        "max_tokens": 1,
    }
    data = request("POST", "/v1/completions", json.dumps(body).encode())
    return told([exchange(target.port, data)])


def short_prompts(target: Target) -> str:
    """8 MB of prompts that each fit into the model, as many as vLLM takes."""
    prompt = "one two three " * (_BODY_BYTES // _PROMPTS // 14 - 1)
    body = {"model": target.model, "prompt": [prompt] * _PROMPTS, "max_tokens": 1}
    data = request("POST", "/v1/completions", json.dumps(body).encode())
    return told([exchange(target.port, data, _LONG_S)])


def guess_keys(target: Target) -> str:
    """Wrong keys on one connection, as fast as it goes."""
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


def _repeat(times: int, do: Callable[[], Answered]) -> list[Answered]:
    found = []
    for _ in range(times):
        found.append(do())
        time.sleep(_BETWEEN_S)
    return found


def _at_once(n: int, do: Callable[[], Answered]) -> list[Answered]:
    found: list[Answered] = []
    threads = [threading.Thread(target=lambda: found.append(do())) for _ in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def told(answers: Iterable[Answered]) -> str:
    """For the table: statuses, the longest time, and how much was taken where not all was."""
    answers = list(answers)
    statuses = Counter(answered.status for answered in answers)
    shown = ", ".join(f"{n} x {s}" if n > 1 else s for s, n in statuses.items())
    slowest = max(answers, key=lambda answered: answered.seconds)
    words = next((message(a.body) for a in answers if a.status[0] in "45"), "")
    said = f" ({words})" if words else ""
    return f"{shown}{said} in {slowest.seconds:.1f} s, {slowest.sent / 1e6:.1f} MB sent"


def message(body: bytes) -> str:
    """The beginning of an error's message, as it fits into a table."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        text = str(json.loads(body)["error"]["message"])
        return " ".join(text.replace("|", "/").split())[:_SHOWN]
    return ""


HOSTILE = {
    "nothing": Hostile("nothing", nothing),
    "objects": Hostile("8 MB of `{}` in a field that nobody reads", large_body('"x": [{}...]')),
    "lists": Hostile("8 MB of `[]` in such a field", large_body('"x": [[]...]')),
    "keys": Hostile("8 MB of keys in such a field", large_body('"x": {"k#":0...}')),
    "unknown": Hostile("8 MB of `[]`, unknown model", large_body('"x": [[]...]', "no-such-model")),
    "messages": Hostile(
        "8 MB of messages",
        large_body('"messages": [{"role":"user","content":"a"}...]', times=1),
    ),
    "wrong-messages": Hostile(
        "8 MB of `{}` as messages", large_body('"messages": [{}...]', times=1)
    ),
    "list-40": Hostile(
        "GET /jobs?limit=100, 40 jobs of 8 MB", list_jobs("limit=100"), submit_large_jobs(40)
    ),
    "list-40x4": Hostile(
        "the same, four at once", list_jobs("limit=100", 4), submit_large_jobs(40)
    ),
    "list-100": Hostile(
        "GET /jobs?limit=100, 100 jobs of 8 MB", list_jobs("limit=100"), submit_large_jobs(100)
    ),
    "list-none": Hostile(
        "GET /jobs with a filter that matches none, 100 jobs of 8 MB",
        list_jobs("limit=100&model=nobody"),
        submit_large_jobs(100),
    ),
    "header": Hostile("no key: one header of 100 MB", *send_headers(one_header)),
    "headers": Hostile("no key: 40 MB of headers", *send_headers(short_headers)),
    "half": Hostile("no key: 300 x half a header, 256 descriptors", half_a_header),
    "upgrade": Hostile("no key: 300 x upgrade by POST, 256 descriptors", upgrade),
    "guess": Hostile("no key: guessing keys", guess_keys),
}
VLLM_HOSTILE = {
    "vllm-nothing": Hostile("real vLLM: nothing", nothing),
    "vllm-prompts": Hostile("real vLLM: 8 MB in 1024 prompts", short_prompts),
    "vllm-truncate": Hostile(
        "real vLLM: 4 MB prompt with `truncate_prompt_tokens`", truncated_prompt
    ),
}
"""With the demo model."""

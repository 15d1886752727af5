"""Calls an ASGI application in process, without a socket, and records what an engine journals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message

from worker.engines.interface import JOURNAL, Past


@dataclass
class Reply:
    """The response; `chunks` has one item per message of the application."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    chunks: list[bytes] = field(default_factory=list)

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    def json(self) -> Any:
        return json.loads(self.body)

    def data(self) -> list[str]:
        """Return the data of all server-sent events; asserts that the body has nothing else."""
        text = self.body.decode()
        assert text.endswith("\n\n"), text[-200:]
        events = text[:-2].split("\n\n")
        assert all(event.startswith("data: ") and "\n" not in event for event in events), events
        return [event.removeprefix("data: ") for event in events]

    def events(self) -> list[Any]:
        """Return the JSON of all events but the last; asserts that the last is [DONE]."""
        *payloads, done = self.data()
        assert done == "[DONE]"
        return [json.loads(payload) for payload in payloads]


async def call(
    app: ASGIApp,
    method: str,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    disconnect: asyncio.Event | None = None,
    on_chunk: Callable[[bytes], None] | None = None,
) -> Reply:
    """Send one request; `body` is bytes, or a value that is encoded as JSON.

    The client disconnects when `disconnect` is set. `on_chunk` gets each chunk of the body, whether
    the application or the `Recorder` in JOURNAL sends it.
    """
    raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    disconnected = disconnect or asyncio.Event()
    reply = Reply()
    sent = False
    all_headers = {"content-type": "application/json", "host": "engine", **(headers or {})}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(k.lower().encode(), v.encode()) for k, v in all_headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "state": {},
    }

    async def receive() -> Message:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": raw, "more_body": False}
        await disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            reply.status = message["status"]
            reply.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        elif message.get("body"):
            add_chunk(message["body"])

    def add_chunk(data: bytes) -> None:
        reply.chunks.append(data)
        if on_chunk is not None:
            on_chunk(data)

    journal = JOURNAL.get()
    if isinstance(journal, Recorder):
        journal.client = add_chunk
    await app(scope, receive, send)
    return reply


class Recorder:
    """A `Journal` that records all calls."""

    def __init__(self) -> None:
        self.contexts: dict[int, Any] = {}
        self.prompts: dict[int, int] = {}
        self.token_ids: dict[tuple[int, int], list[int]] = {}
        self.texts: dict[tuple[int, int], str] = {}
        self.deltas = 0
        self.cached_tokens = 0
        self.passed_on = 0
        """Chunks that were sent by the journal instead of the application."""
        self.client: Callable[[bytes], None] = lambda data: None

    def past(self, call: int) -> Past | None:
        return None

    def refuse_past(self, reason: str) -> None:
        raise AssertionError(reason)

    def continued(self, how: str, decoded_again: int) -> None:
        raise AssertionError(how)

    def context(self, call: int, context: Any) -> None:
        self.contexts[call] = context

    def prompt(self, call: int, n_tokens: int, logprobs: Any = None) -> None:
        assert call not in self.prompts
        self.prompts[call] = n_tokens

    def cached(self, n_tokens: int) -> None:
        self.cached_tokens += n_tokens

    def delta(
        self, call: int, index: int, token_ids: Sequence[int], text: str, logprobs: Any = None
    ) -> None:
        assert call in self.prompts
        self.deltas += 1
        self.token_ids.setdefault((call, index), []).extend(token_ids)
        self.texts[call, index] = self.texts.get((call, index), "") + text

    def chunk(self, data: bytes) -> None:
        self.passed_on += 1
        self.client(data)

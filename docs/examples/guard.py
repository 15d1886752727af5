"""A guard: a model such as Llama Guard reads each whole answer before its client gets any of it.

    --engine-args '--middleware docs.examples.guard.Guard'

The guard's model is served by another pool, or another server: GUARD_URL is the base URL of its
OpenAI API, GUARD_MODEL its name, GUARD_KEY an API key. It gets the conversation with the answer,
and says `safe`, or `unsafe` and the categories. Whatever else it says, the answer is withheld; if
it does not answer, the request fails.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import httpx
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_URL = os.environ.get("GUARD_URL", "http://127.0.0.1:8000/v1")
_MODEL = os.environ.get("GUARD_MODEL", "meta-llama/Llama-Guard-3-1B")
_KEY = os.environ.get("GUARD_KEY", "none")
_TIMEOUT_S = 20.0
_TEXTS = {
    "content", "text", "delta", "reasoning", "reasoning_content", "thinking", "arguments",
    "partial_json",
}  # fmt: skip
"""The members that have text, in the answers of all endpoints."""


class Guard:
    """The middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._client = httpx.AsyncClient(
            base_url=_URL, headers={"authorization": f"Bearer {_KEY}"}, timeout=_TIMEOUT_S
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        held: list[Message] = []
        asked, is_gone = b"", False

        async def read() -> Message:
            nonlocal asked, is_gone
            message = await receive()
            asked += message.get("body", b"")
            is_gone = message["type"] == "http.disconnect"
            return message

        async def hold(message: Message) -> None:
            held.append(message)

        await self._app(scope, read, hold)
        if is_gone:  # the job was cancelled, or another worker goes on with it
            return
        if held[0]["status"] == 200 and (text := _text(held)):
            verdict = await self._verdict(_conversation(asked), text)
            if verdict[:1] != ["safe"]:
                refusal = _refusal(", ".join(verdict[1:]))
                await refusal(scope, receive, send)
                return
        for message in held:  # one by one: each event of a stream is a message
            await send(message)

    async def _verdict(self, conversation: list[Any], answer: str) -> list[str]:
        messages = [*conversation, {"role": "assistant", "content": answer}]
        body = {"model": _MODEL, "messages": messages, "max_tokens": 20, "temperature": 0}
        reply = await self._client.post("chat/completions", json=body)
        reply.raise_for_status()
        said: str = reply.json()["choices"][0]["message"]["content"]
        return said.split()


def _refusal(categories: str) -> JSONResponse:
    named = f" ({categories})" if categories else ""
    error = {
        "message": f"The answer was withheld by the safety check{named}.",
        "type": "invalid_request_error",
        "param": None,
        "code": "content_filter",
    }
    return JSONResponse({"error": error}, 400)


def _conversation(body: bytes) -> list[Any]:
    """What the client has said; empty if it is no JSON."""
    try:
        asked = json.loads(body)
    except ValueError:
        return []
    given = asked.get("messages") or asked.get("input") or asked.get("prompt") or []
    return given if isinstance(given, list) else [{"role": "user", "content": str(given)}]


def _text(held: list[Message]) -> str:
    """All text of an answer, streamed or not; empty if it has none, as embeddings."""
    body = b"".join(message.get("body", b"") for message in held)
    if b"application/octet-stream" in dict(held[0]["headers"]).values():
        return ""
    lines = [line.removeprefix(b"data: ") for line in body.split(b"\n")]
    try:
        parts = [json.loads(line) for line in lines if line.startswith(b"{")]
    except ValueError:
        parts = []
    if not parts:
        return body.decode(errors="replace")
    return "".join(text for part in parts for text in _texts(part))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, dict):
        if str(value.get("type")) == "response.completed":  # repeats what came before
            return
        for key, each in value.items():
            if isinstance(each, str) and key in _TEXTS:
                yield each
            elif not isinstance(each, str):
                yield from _texts(each)

"""Retrieval before the prompt is rendered: passages that fit the last question go in front of a
chat.

    --engine-args '--middleware docs.examples.retrieval.Retrieval'

RAG_FOLDER has the passages: the paragraphs of its .txt files. Those that share the rarest words
with the question come first; a real index goes in place of `search`.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_FOLDER = Path(os.environ.get("RAG_FOLDER") or Path(__file__).parent / "passages")
_MOST = 3


class Retrieval:
    """The middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        texts = [path.read_text() for path in sorted(_FOLDER.glob("*.txt"))]
        passages = [part.strip() for text in texts for part in text.split("\n\n") if part.strip()]
        self._passages = [(passage, _words(passage)) for passage in passages]
        self._uses = Counter(word for _, words in self._passages for word in words)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; one that is no chat is passed on as it is."""
        if scope["type"] != "http" or scope["path"] != "/v1/chat/completions":
            await self._app(scope, receive, send)
            return
        request = await receive()  # a worker gives the whole body at once
        changed = {**request, "body": self._with_passages(request["body"])}
        given = iter([changed])

        async def receive_changed() -> Message:
            return next(given, None) or await receive()

        await self._app(scope, receive_changed, send)

    def search(self, question: str) -> list[str]:
        """The passages that fit best, best first. The same question always has the same ones."""
        asked = _words(question)
        scores = [
            (sum(math.log(1 + len(self._passages) / self._uses[w]) for w in asked & words), passage)
            for passage, words in self._passages
        ]
        best = sorted(scores, key=lambda scored: -scored[0])[:_MOST]
        return [passage for score, passage in best if score > 0]

    def _with_passages(self, body: bytes) -> bytes:
        chat = json.loads(body)
        passages = self.search(_last_question(chat.get("messages")))
        if not passages:
            return body
        text = "Use these passages where they help:\n\n" + "\n\n".join(passages)
        chat["messages"] = [{"role": "system", "content": text}, *chat["messages"]]
        return json.dumps(chat).encode()


def _last_question(messages: Any) -> str:
    """The text of the user's last message; empty if there is none."""
    for message in reversed(messages if isinstance(messages, list) else []):
        if isinstance(message, dict) and message.get("role") == "user":
            content = message.get("content")
            if isinstance(content, str):
                return content
            parts = content if isinstance(content, list) else []
            return " ".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
    return ""


def _words(text: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[^\W_]+", text)}

"""A gateway of canned answers on a real socket."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.harness import http_stub


class Request(NamedTuple):
    """What a command has sent."""

    method: str
    path: str
    body: Any
    headers: Mapping[str, str]


class Answer(NamedTuple):
    """A canned answer: an object as JSON, or bytes as they are."""

    body: Any
    status: int = 200
    content_type: str = "application/json"


def error(message: str, status: int, code: str | None = None) -> Answer:
    """An error in OpenAI's shape."""
    body = {"message": message, "type": "server_error", "param": None, "code": code}
    return Answer({"error": body}, status)


def events(*parts: tuple[str, Any]) -> Answer:
    """A stream of named events."""
    text = "".join(
        f"event: {name}\nid: {number}\ndata: {json.dumps(data)}\n\n"
        for number, (name, data) in enumerate(parts)
    )
    return Answer(text.encode(), content_type="text/event-stream")


@dataclass
class StubGateway(http_stub.HttpStub):
    """Answers by method and path; the query is part of the path if such an answer exists."""

    answers: dict[str, Any] = field(default_factory=dict)
    """`GET /jobs` -> an Answer, the body of one, or a list of them, one for each request."""
    requests: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def sent(self) -> list[tuple[str, Any]]:
        """Each request's method and path, and its body."""
        return [(f"{each.method} {each.path}", each.body) for each in self.requests]

    def answer(self, request: http_stub.Request) -> http_stub.Answer:
        method, path, headers, body = request
        self.requests.append(Request(method, path, json.loads(body) if body else None, headers))
        answer = self._answer(f"{method} {path}")
        text = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        headers = {"content-type": answer.content_type, "x-flotilla-job-id": "job_1"}
        return http_stub.Answer(text, answer.status, headers)

    def _answer(self, line: str) -> Answer:
        for key in (line, line.partition("?")[0]):
            found = self.answers.get(key)
            if isinstance(found, list):
                found = found.pop(0) if len(found) > 1 else found[0]
            if found is not None:
                return found if isinstance(found, Answer) else Answer(found)
        return error(f"no answer to {line}", 404, "unknown_route")

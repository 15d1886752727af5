"""What a client of the gateway sends, and calls that run in a thread of their own."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from http.cookiejar import DefaultCookiePolicy
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx

from shared.client.async_transport import AsyncResumingTransport
from shared.client.retries import Limits
from shared.client.transport import ResumingTransport

__all__ = ["AsyncResumingTransport", "Limits", "ResumingTransport"]

MODEL = "simulated"
"""The name that simulated workers serve."""
CHAT = "/v1/chat/completions"
http = httpx.Client(timeout=60, limits=httpx.Limits(), headers={"connection": "close"})
"""For single requests, from any thread: `httpx.get` makes a client for each call, which reads all
certificates in 20 ms. Each request has a connection of its own, and cookies are not kept. A pool
that closes surplus connections may close one that another thread has begun to use."""
http.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=()))


def chat(text: str = "hello", **fields: Any) -> dict[str, Any]:
    """The body of a chat completion with one message of the user."""
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}


def batch_line(custom_id: str, **body: Any) -> bytes:
    """A line of a batch's input."""
    whole = chat(custom_id, max_tokens=2) | body
    fields = {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": whole}
    return json.dumps(fields).encode()


class HasUrl(Protocol):
    """A gateway, or a fleet that has one."""

    url: str


class Call(threading.Thread):
    """A streamed request in a thread of its own; `lines` and `status` fill as it goes."""

    def __init__(
        self,
        gateway: HasUrl,
        body: dict[str, Any],
        timeout_s: float = 60,
        *,
        path: str = CHAT,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(daemon=True)
        self.body = body
        self.status = 0
        self.lines: list[str] = []
        """The lines of the answer that are not empty."""
        self.headers: httpx.Headers | None = None
        self._request: dict[str, Any] = {
            "url": f"{gateway.url}{path}",
            "json": body,
            "headers": headers,
            "timeout": timeout_s,
        }
        self.start()

    def run(self) -> None:
        sent = http.stream("POST", **self._request)
        with contextlib.suppress(httpx.RemoteProtocolError), sent as answer:
            self.status, self.headers = answer.status_code, answer.headers
            self.lines.extend(line for line in answer.iter_lines() if line)

    @property
    def job_id(self) -> str:
        """The id of the call's job; empty before the head of the answer has come."""
        return "" if self.headers is None else self.headers.get("x-flotilla-job-id", "")

    @property
    def events(self) -> list[str]:
        """The data of the events that have come."""
        return [line[6:] for line in self.lines if line.startswith("data: ")]

    @property
    def text(self) -> str:
        """The text of the first choice so far."""
        chunks = [json.loads(event) for event in self.events if event.startswith('{"id"')]
        return "".join(
            chunk["choices"][0]["delta"].get("content") or ""
            for chunk in chunks
            if chunk["choices"]
        )

    @property
    def error(self) -> str:
        """The code of the error that an ended stream has ended with; empty if it is complete."""
        if self.events[-1] == "[DONE]":
            return ""
        return str(json.loads(self.events[-1])["error"]["code"])


@contextlib.contextmanager
def unread(
    gateway: HasUrl, body: dict[str, Any], *, headers: dict[str, str] | None = None
) -> Iterator[None]:
    """A call whose client reads nothing, and leaves when the context is left."""
    connection = HTTPConnection(urlsplit(gateway.url).netloc)
    sent = {"content-type": "application/json", **(headers or {})}
    with contextlib.closing(connection):
        connection.request("POST", CHAT, json.dumps(body), sent)
        yield


def join(calls: list[Call], timeout_s: float = 60) -> None:
    """Wait for the end of all calls."""
    for call in calls:
        call.join(timeout_s)
        assert not call.is_alive(), "a client hangs"


def job(gateway: HasUrl, job_id: str) -> dict[str, Any]:
    """The record of a job."""
    shown: dict[str, Any] = http.get(f"{gateway.url}/jobs/{job_id}").json()
    return shown


def in_progress(gateway: HasUrl, n: int) -> bool:
    """Whether so many jobs run."""
    listed = http.get(f"{gateway.url}/jobs", params={"state": "in_progress"}).json()
    return len(listed["data"]) == n


def submit(gateway: HasUrl, body: dict[str, Any], path: str = CHAT) -> str:
    """Make a job, which runs whether anyone reads it or not; its id."""
    made = http.post(f"{gateway.url}/jobs", json={"endpoint": path, "body": body}, timeout=60)
    assert made.status_code == 202, made.text
    return str(made.json()["id"])


def states(gateway: HasUrl, ids: list[str]) -> set[str]:
    """The states of these jobs."""
    return {str(job(gateway, job_id)["state"]) for job_id in ids}


def outcomes(gateway: HasUrl, job_id: str) -> list[str]:
    """How each attempt of a job has ended."""
    return [str(attempt["outcome"]) for attempt in job(gateway, job_id)["attempts"]]

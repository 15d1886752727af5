"""Mixed users for a fleet of your own, with locust (https://locust.io):

    pip install locust
    LOAD_KEYS=key-a,key-b locust -f load_tests/locustfile.py --host http://gateway:8000

| variable | what | default |
|---|---|---|
| `LOAD_KEYS` | API keys, comma separated; each user takes one, which makes several tenants | none |
| `LOAD_MODEL` | the model's name | the first of `/v1/models` |
| `LOAD_TOKENS` | the maximum number of tokens of an answer | 128 |

Locust shows requests by name. Rows of type `TTFT` are the times to first token of streams; locust
itself measures a stream's request only until its headers. Clients that disconnect or cancel on
purpose are not failures. A Python client costs more CPU per token than the gateway: start locust
with `--processes` on another machine; TTFT includes the client's own delay.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from collections.abc import Iterable, Iterator
from typing import Any

from locust import HttpUser, between, task

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_KEYS = [key for key in os.environ.get("LOAD_KEYS", "").split(",") if key]
_NEXT_KEY = itertools.cycle(_KEYS or [""])
_TOKENS = int(os.environ.get("LOAD_TOKENS", "128"))
_PROMPTS = (
    "What is a queue?",
    "Tell me a story about a ship.",
    "Name three reasons to wait.",
    "Write a haiku about tokens.",
)
_POLL_S = 10
_JOB_S = 600.0


class Mixed(HttpUser):
    """A user who does one task after another; the numbers are weights."""

    wait_time = between(0.1, 1.0)

    def on_start(self) -> None:
        """Choose an API key and the model."""
        key = next(_NEXT_KEY)
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._model = os.environ.get("LOAD_MODEL") or self._first_model()

    @task(40)
    def chat_stream(self) -> None:
        """Read a streamed chat completion to its end."""
        self._stream(CHAT, "chat, streamed", self._chat())

    @task(15)
    def completion_stream(self) -> None:
        """Read a streamed completion to its end."""
        body = {"prompt": random.choice(_PROMPTS), "max_tokens": self._length()}
        self._stream(COMPLETIONS, "completion, streamed", body)

    @task(20)
    def chat(self) -> None:
        """Get a short answer that is not streamed."""
        body = {"model": self._model, **self._chat(), "max_tokens": 8}
        self.client.post(CHAT, json=body, headers=self._headers, name="chat, short")

    @task(10)
    def job(self) -> None:
        """Submit a job and poll it until it has ended."""
        path = self._submit(self._chat())
        began = time.monotonic()
        while path and time.monotonic() < began + _JOB_S:
            job = self._get_job(path)
            if job.get("state") in ("queued", "in_progress"):
                continue
            state = job.get("state")
            problem = "" if state == "completed" else f"the job is {state}: {job.get('error')}"
            self._report("JOB", "to its end", 1e3 * (time.monotonic() - began), problem)
            return

    @task(5)
    def cancelled_job(self) -> None:
        """Submit a job and cancel it."""
        path = self._submit(self._chat())
        if path:
            time.sleep(random.uniform(0, 1))
            name = "/jobs/{id}/cancel"
            self.client.post(f"{path}/cancel", headers=self._headers, name=name)

    @task(10)
    def disconnect(self) -> None:
        """Close the connection in the middle of a stream."""
        self._stream(CHAT, "chat, disconnected", self._chat(), chunks=random.randrange(1, 20))

    def _chat(self) -> dict[str, Any]:
        question = {"role": "user", "content": random.choice(_PROMPTS)}
        return {"messages": [question], "max_tokens": self._length()}

    def _length(self) -> int:
        return random.randrange(1, _TOKENS + 1)

    def _stream(
        self, path: str, name: str, body: dict[str, Any], chunks: int | None = None
    ) -> None:
        """Read a streamed answer, or only `chunks` of it; report the time to the first one."""
        whole = {"model": self._model, "stream": True, **body}
        began = time.monotonic()
        n, last = 0, ""
        with self.client.post(
            path, json=whole, headers=self._headers, name=name, stream=True, catch_response=True
        ) as response:
            if response.status_code == 200:
                for last in _events(response.iter_lines()):  # noqa: B007
                    n += 1
                    if n == 1:
                        self._report("TTFT", name, 1e3 * (time.monotonic() - began))
                    if n == chunks:
                        break
                if last.startswith('{"error"'):
                    response.failure(last[:200])
                elif last != "[DONE]" and n != chunks:
                    response.failure("the stream ended without [DONE]")
            response.close()  # disconnects if the answer has not ended

    def _submit(self, body: dict[str, Any]) -> str:
        """Submit a job; return its path, or an empty string if it was refused."""
        wanted = {"endpoint": CHAT, "body": {"model": self._model, **body}}
        response = self.client.post("/jobs", json=wanted, headers=self._headers)
        return str(response.headers["location"]) if response.status_code == 202 else ""

    def _get_job(self, path: str) -> dict[str, Any]:
        query = {"wait": str(_POLL_S)}
        response = self.client.get(path, params=query, headers=self._headers, name="/jobs/{id}")
        job: dict[str, Any] = json.loads(response.text or "{}")
        return job

    def _first_model(self) -> str:
        response = self.client.get("/v1/models", headers=self._headers)
        return str(json.loads(response.text)["data"][0]["id"])

    def _report(self, kind: str, name: str, took_ms: float, problem: str = "") -> None:
        """Report a time or a failure to locust."""
        self.environment.events.request.fire(
            request_type=kind,
            name=name,
            response_time=took_ms,
            response_length=0,
            exception=ValueError(problem) if problem else None,
        )


def _events(lines: Iterable[bytes]) -> Iterator[str]:
    """Yield the data of server-sent events."""
    return (line[6:].decode() for line in lines if line.startswith(b"data: "))

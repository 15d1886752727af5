"""One measured request. Its times have the meaning that they have in `vllm bench serve`."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from gateway.bench.backends import CHAT, PATHS
from gateway.bench.outcome import Outcome
from gateway.bench.prompts import Prompt
from shared.client import sse

_DONE = b"[DONE]"
_JOB_ID = "x-flotilla-job-id"
_OK = 200
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go, and what all of them have in common."""

    url: str
    """The server, without a path."""
    model: str
    backend: str = CHAT
    headers: Mapping[str, str] = field(default_factory=dict)
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    ignore_eos: bool = True

    def body(self, prompt: Prompt) -> dict[str, Any]:
        """The body of one request."""
        if self.backend == CHAT:
            content: dict[str, Any] = {"messages": [{"role": "user", "content": prompt.text}]}
            content["max_completion_tokens"] = prompt.output_tokens
        else:
            content = {"prompt": prompt.text, "max_tokens": prompt.output_tokens}
        content |= {"stream": True, "stream_options": {"include_usage": True}}
        if self.ignore_eos:
            content["ignore_eos"] = True
        return {"model": self.model, **content, **self.extra_body}

    async def call(self, session: aiohttp.ClientSession, prompt: Prompt) -> Outcome:
        """Send one request and read its answer to the end; errors are in the Outcome."""
        url, body = self.url + PATHS[self.backend], self.body(prompt)
        outcome = Outcome(started=time.perf_counter())
        try:
            async with session.post(url, json=body, headers=self.headers) as response:
                outcome.status = response.status
                outcome.job_id = response.headers.get(_JOB_ID, "")
                if response.status == _OK:
                    await _read(response.content, outcome)
                else:
                    outcome.error = problem(response.status, await response.read())
        except (aiohttp.ClientError, TimeoutError, ValueError, AttributeError) as error:
            outcome.error = f"{type(error).__name__}: {error}"[:_SHOWN]
        return outcome


def problem(status: int, body: bytes) -> str:
    """A refusal in one line: its status and the message of its body."""
    text = body.decode(errors="replace")
    with contextlib.suppress(ValueError, LookupError, TypeError):
        text = json.loads(text)["error"]["message"]
    return f"{status}: {text}"[:_SHOWN]


async def _read(content: aiohttp.StreamReader, outcome: Outcome) -> None:
    """Take the times of a stream's chunks. Raises ValueError, AttributeError for other JSON."""
    events, last, ended = sse.EventSplitter(), 0.0, False
    async for data in content.iter_any():
        for event in events.feed(data):
            payload = sse.field(event, b"data")
            if not payload:  # a comment
                continue
            if payload == _DONE:
                ended = True
                continue
            now = time.perf_counter()
            chunk = json.loads(payload)
            if chunk.get("choices"):
                if last:
                    outcome.itl.append(now - last)
                else:
                    outcome.ttft = now - outcome.started
                last = now
            elif "error" in chunk:
                outcome.error = problem(outcome.status, payload)
            if usage := chunk.get("usage"):
                outcome.prompt_tokens = usage.get("prompt_tokens") or 0
                outcome.output_tokens = usage.get("completion_tokens") or 0
    outcome.latency = last - outcome.started if last else 0.0
    if not outcome.error and not last:
        outcome.error = "the answer has no chunk with a choice"
    elif not outcome.error and not ended:
        outcome.error = "the stream ended before its end mark"
    # A server without `stream_options`.
    outcome.output_tokens = outcome.output_tokens or len(outcome.itl) + bool(last)

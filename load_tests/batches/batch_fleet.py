"""A gateway, a durable Redis, one simulated worker, maintenance and a storage; and its batches."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from load_tests.harness.errors import WrongAnswerError
from load_tests.systems.engine import CHAT_PATH, EngineTiming, request_body
from load_tests.systems.flotilla import Flotilla
from tests.harness.fleet import Stack

_POLL_S = 0.1
_HTTP_S = 600.0
_NUMBER = "<number>"
_ENDED = {"completed", "failed", "cancelled", "expired"}


@dataclass(frozen=True, slots=True)
class EndedBatch:
    """What became of a batch."""

    batch: Mapping[str, Any]
    """OpenAI's object."""
    seconds: float
    """From its creation to its end."""
    cpu_s: Mapping[str, float]
    """CPU seconds meanwhile, by process label."""


class BatchFleet(Flotilla):
    """Call `start` once."""

    name = "batch"

    def __init__(self, processes: Stack, timing: EngineTiming, **settings: Any) -> None:
        super().__init__(processes, timing)
        self._more = settings
        self.http = httpx.Client(timeout=_HTTP_S)

    def start(self) -> None:
        """Start all processes."""
        redis = self.start_redis()
        storage = {"storage_url": tempfile.mkdtemp(prefix="files-", dir=self.folder)}
        common = {"redis_url": redis.socket_url, **self._more}
        self.worker = self.stack.worker(name="engine", **common)
        self.start_gateway(**common, **storage)
        self.http.base_url = httpx.URL(f"http://127.0.0.1:{self.ports[0]}/v1/")
        self.maintenance = self.stack.maintenance(name="maintenance", **common, **storage)

    def create(self, lines: Path) -> Mapping[str, Any]:
        """Upload an input and create its batch."""
        with lines.open("rb") as file:
            reply = self.http.post("files", files={"file": file}, data={"purpose": "batch"})
        wanted = {
            "input_file_id": _checked(reply)["id"],
            "endpoint": CHAT_PATH,
            "completion_window": "24h",
        }
        return _checked(self.http.post("batches", json=wanted))

    def get(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """The batch now."""
        return _checked(self.http.get(f"batches/{batch['id']}"))

    def follow(self, batch: Mapping[str, Any], deadline_s: float) -> Iterator[Mapping[str, Any]]:
        """Yield the batch ten times a second until it has ended. Raises WrongAnswerError."""
        until = time.monotonic() + deadline_s
        while True:
            found = self.get(batch)
            yield found
            if found["status"] in _ENDED:
                return
            if time.monotonic() > until:
                raise WrongAnswerError(f"not ended within {deadline_s:.0f} s: {found}")
            time.sleep(_POLL_S)

    def run(self, lines: Path, deadline_s: float) -> EndedBatch:
        """Run a batch; each of its lines must be answered. Raises WrongAnswerError."""
        batch = self.create(lines)
        began, before = time.monotonic(), self.cpu_s()
        *_, found = self.follow(batch, deadline_s)
        seconds, after = time.monotonic() - began, self.cpu_s()
        counts = found["request_counts"]
        if found["status"] != "completed" or counts["completed"] != counts["total"]:
            raise WrongAnswerError(f"{found}")
        used = {label: after[label] - before[label] for label in after}
        return EndedBatch(found, seconds, used)

    def answers(self, batch: Mapping[str, Any]) -> dict[str, str]:
        """The answers of an ended batch by custom id."""
        answers = {}
        with self.http.stream("GET", f"files/{batch['output_file_id']}/content") as reply:
            for line in reply.iter_lines():
                found = json.loads(line)
                choice = found["response"]["body"]["choices"][0]
                answers[found["custom_id"]] = choice["message"]["content"]
        return answers


def write_lines(path: Path, count: int, tokens: int, padding: str = "") -> None:
    """Write an input of so many lines: requests as `run` sends them, each with its own prompt,
    which begins with `padding`."""
    wanted = request_body(tokens=tokens, stream=False)
    message = wanted["messages"][0]
    message["content"] = padding + message["content"] + _NUMBER
    line = {"custom_id": _NUMBER, "method": "POST", "url": CHAT_PATH, "body": wanted}
    before, between, after = json.dumps(line).split(_NUMBER)
    with path.open("w") as file:
        for number in range(count):
            file.write(f"{before}{number}{between}{number}{after}\n")


def _checked(reply: httpx.Response) -> dict[str, Any]:
    if reply.status_code != 200:
        raise WrongAnswerError(f"{reply.status_code}: {reply.text[:500]}")
    found: dict[str, Any] = reply.json()
    return found

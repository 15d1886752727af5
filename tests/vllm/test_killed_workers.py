"""`flotilla up` with real vLLM: a worker is killed in the middle of answers, then an engine.

The other worker continues the answers, and `flotilla up` starts a new one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.client import Call, job
from tests.harness.models import DEMO
from tests.harness.up import REAL, Up, children, is_alive
from tests.harness.waiting import wait_for
from tests.vllm.same_answer import values_differ

pytestmark = pytest.mark.vllm

LOADING_S = 600.0
ANSWER_S = 600.0
LONG = {"max_tokens": 300, "ignore_eos": True}
"""Long enough for a kill in the middle: a chunk may have several tokens."""
ENGINE = "VLLM::EngineCore"
ROUNDING = 1e-3
"""A logprob's last digits depend on how many requests are computed with it."""
REQUESTS: list[dict[str, Any]] = [
    {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}},
    {"temperature": 1.2, "seed": 5, "stream": True, "presence_penalty": 1.0},
    {"temperature": 1.2, "seed": 6, "stream": True, "n": 2, "logprobs": True, "top_logprobs": 2},
    {"temperature": 1.2, "seed": 7, "n": 2, "logprobs": True},
    {"temperature": 0, "stream": True, "structured_outputs": {"regex": "([a-z]{3,9} ){60}"}},
    {"temperature": 0},
]


def body(fields: dict[str, Any]) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Tell me a story about a queue."}]
    return {"model": DEMO, "messages": messages, **LONG, **fields}


def answer(call: Call) -> Any:
    """What the client got, joined by choice."""
    assert call.status == 200
    if call.lines[0].startswith("{"):
        return [
            [choice["message"]["content"], choice["finish_reason"], logprobs(choice)]
            for choice in json.loads(call.lines[0])["choices"]
        ]
    assert call.lines[-1] == "data: [DONE]"
    found: dict[int, list[Any]] = {}
    for line in call.lines:
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            mine = found.setdefault(choice["index"], ["", None, []])
            mine[0] += choice["delta"].get("content") or ""
            mine[1] = mine[1] or choice["finish_reason"]
            mine[2] += logprobs(choice)
    return [found[index] for index in sorted(found)]


def logprobs(choice: dict[str, Any]) -> list[Any]:
    content = (choice.get("logprobs") or {}).get("content") or []
    return [[token["token"], token["logprob"]] for token in content]


def tokens(call: Call) -> int:
    """How many chunks a stream has."""
    return sum(line.startswith("data: ") for line in call.lines)


def has_begun(stream: Call) -> bool:
    """Return whether a stream has 40 chunks, or all it will have.

    On a busy machine a chunk has many tokens: 300 came in 30 chunks.
    """
    return tokens(stream) > 40 or not stream.is_alive()


class Fleet:
    """The processes of one `flotilla up`."""

    def __init__(self, folder: Path) -> None:
        # With float32 an answer does not depend on what else is in the batch.
        arguments = ("--workers", "2", "--engine-args", "--dtype float32")
        environment = {"FLOTILLA_ENGINE": "vllm", "FLOTILLA_LEASE_S": "3"}
        self.up = Up(folder, *arguments, command=REAL, **environment)
        self.url = f"http://127.0.0.1:{self.up.port}"

    def calls(self) -> list[Call]:
        """Send all requests."""
        return [Call(self, body(fields), ANSWER_S) for fields in REQUESTS]

    @contextlib.contextmanager
    def in_the_middle(self) -> Iterator[tuple[list[Call], Call]]:
        """Send all requests. Gives them, and the stream that has the fewest tokens of those that
        have not ended, while the engines stand still: else it may end before anything is killed.

        All may have ended once the last one begins, as its engine compiles a regular expression
        first, or as their chunks have many tokens: then they are sent again.
        """
        going: list[Call] = []
        while not going:
            calls = self.calls()
            streams = [call for call, of in zip(calls, REQUESTS, strict=True) if "stream" in of]
            wait_for(lambda s=streams: all(map(has_begun, s)), "all begin", ANSWER_S)  # type: ignore[misc]
            engines = self.engines()
            self.signal(engines, signal.SIGSTOP)
            sent, before = sum(map(tokens, streams)), -1
            while sent > before:  # what the engines have made arrives
                time.sleep(0.3)
                before, sent = sent, sum(map(tokens, streams))
            going = [call for call in streams if call.is_alive()]
            if not going:
                self.signal(engines, signal.SIGCONT)
        try:
            yield calls, min(going, key=tokens)
        finally:
            self.signal(engines, signal.SIGCONT)

    @staticmethod
    def signal(pids: list[int], number: int) -> None:
        """Send a signal to those that are there."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def worker_of(self, call: Call) -> int:
        """Return the process that runs the call's job."""
        assert call.headers is not None
        worker = job(self, call.headers["x-flotilla-job-id"])["attempts"][-1]["worker"]
        named = f"FLOTILLA_WORKER_ID={worker}\0".encode()
        return next(p for p in self.workers() if named in Path(f"/proc/{p}/environ").read_bytes())

    def workers(self) -> list[int]:
        """Return the running worker processes."""
        return [p for p in children(self.up.process.pid) if name_of(p).endswith("-m worker")]

    def engines(self, parent: int | None = None) -> list[int]:
        """Return the running engine processes, of one worker or of all."""
        below = children(parent or self.up.process.pid)
        return [p for p in below if ENGINE in name_of(p)]

    def outcomes(self, call: Call) -> list[str]:
        """Return how each attempt at the call's job ended."""
        assert call.headers is not None
        attempts = job(self, call.headers["x-flotilla-job-id"])["attempts"]
        return [attempt["outcome"] for attempt in attempts]


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_answers_outlive_a_killed_worker_and_a_killed_engine(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    up = fleet.up
    try:
        up.wait_until_ready(LOADING_S)
        assert DEMO in up.text()
        undisturbed = answers(fleet.calls())

        with fleet.in_the_middle() as (calls, hit):
            victim = fleet.worker_of(hit)
            (engine,) = fleet.engines(victim)
            os.kill(victim, signal.SIGKILL)
        wait_for(lambda: not is_alive(engine), "its engine ends, too")
        assert values_differ(answers(calls), undisturbed, ROUNDING) == ""
        # A worker without CPU time for 1.5 s counts as lost, too, and the engines take all of it.
        assert set(fleet.outcomes(hit)[:-1]) == {"worker_lost"}
        up.wait_for_output(r"worker-\d +\| is ready again", 1, LOADING_S)

        with fleet.in_the_middle() as (calls, hit):
            (engine,) = fleet.engines(fleet.worker_of(hit))
            os.kill(engine, signal.SIGKILL)
        assert values_differ(answers(calls), undisturbed, ROUNDING) == ""
        assert "engine_died" in fleet.outcomes(hit)
        up.wait_for_output(r"worker-\d +\| .* the engine is dead")
        up.wait_for_output(r"worker-\d +\| is ready again", 2, LOADING_S)

        up.pids.update(children(up.process.pid))
        assert len(fleet.engines()) == 2, up.text()
        up.process.send_signal(signal.SIGINT)
        assert up.wait_for_exit() == 0
        up.wait_until_all_ended()
    finally:
        up.kill()


def answers(calls: list[Call]) -> list[Any]:
    """Wait for the end of all calls; return what their clients got."""
    for call in calls:
        call.join(ANSWER_S)
    return [answer(call) for call in calls]

"""Workers with real vLLM that are killed in the middle of answers; others continue them."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from tests.e2e.continuation_classes import same
from tests.e2e.processes import Process, Stack
from tests.e2e.test_lost_workers import Call, job
from tests.e2e.test_up_with_vllm import name_of
from tests.e2e.up_run import children
from tests.waiting import wait_for
from worker.demo import MODEL_NAME

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

LOADING_S = 240.0
ANSWER_S = 240.0
LONG = {"max_tokens": 300, "ignore_eos": True}
# With float32 an answer does not depend on what else is in the batch.
REAL = {"engine": "vllm", "engine_args": "--dtype float32"}
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
    return {"model": MODEL_NAME, "messages": messages, **LONG, **fields}


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


def of_job(workers: list[Process], gateway: Process, call: Call) -> Process:
    """The worker that runs the call's job."""
    assert call.headers is not None
    worker = job(gateway, call.headers["x-flotilla-job-id"])["attempts"][-1]["worker"]
    return next(w for w in workers if worker in w.log.read_text())


def outcomes(gateway: Process, call: Call) -> list[str]:
    assert call.headers is not None
    attempts = job(gateway, call.headers["x-flotilla-job-id"])["attempts"]
    return [attempt["outcome"] for attempt in attempts]


def engine_of(worker: Process) -> int:
    """The process of the worker's engine."""
    (engine,) = (pid for pid in children(worker.popen.pid) if "EngineCore" in name_of(pid))
    return engine


def test_answers_outlive_a_killed_worker_and_a_killed_engine(stack: Stack) -> None:
    gateway = stack.gateway()
    workers = [stack.worker(wait=False, **REAL) for _ in range(2)]
    for worker in workers:
        wait_for(worker.ready, "the worker is ready", LOADING_S)
    calls = [Call(gateway, body(fields), ANSWER_S) for fields in REQUESTS]
    for call in calls:
        call.join(ANSWER_S)
    undisturbed = [answer(call) for call in calls]

    calls = [Call(gateway, body(fields), ANSWER_S) for fields in REQUESTS]
    streams = [call for call, of in zip(calls, REQUESTS, strict=True) if "stream" in of]
    wait_for(lambda: all(tokens(call) > 40 for call in streams), "all streams have begun", ANSWER_S)
    of_job(workers, gateway, calls[0]).kill()
    for call in calls:
        call.join(ANSWER_S)
    assert same([answer(call) for call in calls], undisturbed)
    assert outcomes(gateway, calls[0]) == ["worker_lost", "completed"]

    (survivor,) = (worker for worker in workers if worker.popen.poll() is None)
    successor = stack.worker(wait=False, **REAL)
    wait_for(successor.ready, "the worker is ready", LOADING_S)
    calls = [Call(gateway, body(fields), ANSWER_S) for fields in REQUESTS]
    wait_for(lambda: all(tokens(calls[i]) > 40 for i in (0, 1, 2, 4)), "they have begun", ANSWER_S)
    victim = of_job([survivor, successor], gateway, calls[0])
    os.kill(engine_of(victim), signal.SIGKILL)
    for call in calls:
        call.join(ANSWER_S)
    assert same([answer(call) for call in calls], undisturbed)
    assert outcomes(gateway, calls[0])[-1] == "completed"
    assert len(outcomes(gateway, calls[0])) == 2

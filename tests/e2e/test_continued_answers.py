"""Answers whose worker is killed in the middle: another one continues them, and nothing shows it.

Requests of every class run at once; each answer is compared with one that nothing has disturbed.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
from typing import Any

import httpx
import pytest
import redis

from tests.harness.fleet import Process, Stack
from tests.harness.waiting import wait_for

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
ANTHROPIC = "/v1/messages"
STEP_MS = 25
SLOW = {"sim_step_ms": STEP_MS, "sim_step_us_per_seq": 0, "lease_s": 4}
FAST = {"sim_step_ms": 1, "sim_step_us_per_seq": 0, "lease_s": 4}
MARK = "the marked prompt"

LONG = {"max_tokens": 60, "ignore_eos": True}
PROMPTS = {"prompt": ["one", "two", "three"], "seed": 4}
RUNNING_USAGE = {"include_usage": True, "continuous_usage_stats": True}
CHATS: list[dict[str, Any]] = [
    LONG,
    {"min_tokens": 50},  # ends by itself
    {**LONG, "seed": 7, "n": 3},
    {"seed": 7, "n": 3, "min_tokens": 20},  # its choices end one after the other
    {**LONG, "service_tier": "flex"},
    {**LONG, "logprobs": True, "top_logprobs": 2},
    {**LONG, "return_token_ids": True},
    {**LONG, "stop": ["ship sail", "never"]},  # text is held back all the time
    {**LONG, "stop": ["ship sail"], "include_stop_str_in_output": True},
]
COMPLETION_BODIES: list[dict[str, Any]] = [
    {**LONG, "prompt": "one"},
    {**LONG, **PROMPTS},
    {**PROMPTS, "n": 2, "max_tokens": 60},  # some of its choices end early
    {**LONG, **PROMPTS, "logprobs": 2},
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"stream": True},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"stream": True, "stream_options": RUNNING_USAGE},
]


def requests() -> list[tuple[str, dict[str, Any]]]:
    """Path and body of one request of each class."""
    found: list[tuple[str, dict[str, Any]]] = []
    for options in OPTIONS:
        for number, body in enumerate(CHATS):
            messages = [{"role": "user", "content": f"chat {number} {sorted(options)}"}]
            found.append((CHAT, {"model": "simulated", "messages": messages, **body, **options}))
        found += [(COMPLETIONS, {"model": "simulated", **b, **options}) for b in COMPLETION_BODIES]
    for number in range(6):
        messages = [{"role": "user", "content": f"message {number}"}]
        body = {"model": "simulated", "messages": messages, "max_tokens": 60}
        found.append((ANTHROPIC, {**body, "stream": number % 2 == 0}))
    return found


class Call(threading.Thread):
    """One request in a thread of its own."""

    def __init__(self, gateway: Process, path: str, body: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self.status = 0
        self.body = b""
        self.job_id = ""
        self._gateway, self._path, self._request = gateway, path, body
        self.start()

    def run(self) -> None:
        url = f"{self._gateway.url}{self._path}"
        with httpx.stream("POST", url, json=self._request, timeout=120) as answer:
            self.status, self.job_id = answer.status_code, answer.headers["x-flotilla-job-id"]
            self.body = answer.read()

    @property
    def answer(self) -> bytes:
        """The answer without what is another's in each job, and without comments."""
        body = re.sub(rb"(?m)^:.*\n\n", b"", self.body.replace(self.job_id.encode(), b"JOB"))
        return re.sub(rb'"created": ?\d+', b"", body)

    def check_one_creation(self) -> None:
        """All chunks have one time of creation. Anthropic's messages have none."""
        found = set(re.findall(rb'"created": ?\d+', self.body))
        assert len(found) == (self._path != ANTHROPIC)


def marked(n: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": MARK}]
    return {"model": "simulated", "messages": messages, "stream": True, **LONG, "max_tokens": n}


def killer(after_tokens: int) -> dict[str, Any]:
    """Settings of a worker that kills itself once so many tokens of the marked answer are out."""
    return {**SLOW, "sim_faults": f"kill_on_prompt={MARK},kill_after_tokens={after_tokens}"}


def job(gateway: Process, job_id: str) -> dict[str, Any]:
    shown: dict[str, Any] = httpx.get(f"{gateway.url}/jobs/{job_id}").json()
    return shown


def killed(worker: Process) -> None:
    assert worker.popen.wait(60) == -signal.SIGKILL


def test_answers_of_every_class_are_those_of_a_worker_that_was_never_killed(stack: Stack) -> None:
    gateway = stack.gateway(lease_s=4)
    victim = stack.worker(**killer(12))
    calls = [Call(gateway, path, body) for path, body in requests()]
    mark = Call(gateway, CHAT, marked(40))
    killed(victim)
    second = stack.worker(wait=False, **killer(26))
    killed(second)
    survivor = stack.worker(**FAST)
    for call in [*calls, mark]:
        call.join(60)
    undisturbed = [Call(gateway, path, body) for path, body in requests()]
    for call in undisturbed:
        call.join(60)
    for call, other in zip(calls, undisturbed, strict=True):
        assert (call.status, other.status) == (200, 200)
        assert call.answer == other.answer
        call.check_one_creation()
    jobs = [job(gateway, call.job_id) for call in calls]
    for shown, other in zip(jobs, undisturbed, strict=True):
        expected = job(gateway, other.job_id)
        assert shown["usage"] == expected["usage"]
        assert shown.get("text") == expected.get("text")
        assert [attempt["outcome"] for attempt in shown["attempts"]][-1] == "completed"
    lost = [len(shown["attempts"]) for shown in [*jobs, job(gateway, mark.job_id)]]
    assert lost[-1] == 3
    assert sum(n > 1 for n in lost) >= 6  # most, unless the machine is slow
    assert survivor.metric("flotilla_jobs_continued_total", how="prefill") >= 1
    assert survivor.metric("flotilla_tokens_taken_over_total") >= 26
    assert survivor.metric("flotilla_tokens_decoded_again_total") == 0
    assert survivor.metric("flotilla_continuations_refused_total") == 0


@pytest.mark.parametrize("after_tokens", [1, 39])
def test_a_worker_that_is_killed_after_the_first_or_before_the_last_token(
    stack: Stack, after_tokens: int
) -> None:
    gateway = stack.gateway(lease_s=4)
    victim = stack.worker(**killer(after_tokens))
    mark = Call(gateway, CHAT, marked(40))
    killed(victim)
    stack.worker(**FAST)
    mark.join(60)
    other = Call(gateway, CHAT, marked(40))
    other.join(60)
    assert mark.answer == other.answer
    assert mark.answer.endswith(b"data: [DONE]\n\n")
    attempts = job(gateway, mark.job_id)["attempts"]
    assert [attempt["outcome"] for attempt in attempts] == ["worker_lost", "completed"]


@pytest.mark.parametrize("stream", [True, False])
def test_the_events_of_a_job_whose_worker_is_killed_go_on(stack: Stack, stream: bool) -> None:
    gateway = stack.gateway(lease_s=4)
    victim = stack.worker(**killer(10))
    body = {**marked(40), "stream": stream}
    events: list[list[tuple[str, str, Any]]] = []
    follower = threading.Thread(target=lambda: events.append(follow(gateway, body)))
    follower.start()
    killed(victim)
    stack.worker(**FAST)
    follower.join(60)
    undisturbed = follow(gateway, body)
    (seen,) = events
    numbers = [position_of(number) for event, number, _ in seen if event in ("chunk", "delta")]
    assert numbers == sorted(set(numbers))
    assert grown(seen) == grown(undisturbed)
    assert seen[-1][0] == "completed"
    assert seen[-1][2]["usage"]["completion_tokens"] == 40


def follow(gateway: Process, body: dict[str, Any]) -> list[tuple[str, str, Any]]:
    """Event, id and data of all events of a new job."""
    job_id = httpx.post(f"{gateway.url}/jobs", json={"body": body}).json()["id"]
    found = []
    with httpx.stream("GET", f"{gateway.url}/jobs/{job_id}/events", timeout=60) as answer:
        for block in answer.read().decode().split("\n\n"):
            lines = [line for line in block.splitlines() if not line.startswith((":", "retry"))]
            fields = dict(line.split(": ", 1) for line in lines)
            if fields:
                data = fields["data"]
                value = json.loads(data) if data != "[DONE]" else data
                found.append((fields["event"], fields.get("id", ""), value))
    return found


def position_of(event_id: str) -> tuple[int, float]:
    """`5.1`, `5.2` and so on come before `5`, the last event of an entry; `end` is the last one."""
    if event_id == "end":
        return sys.maxsize, 0.0
    entry, _, part = event_id.partition(".")
    return int(entry), float(part or "inf")


def grown(events: list[tuple[str, str, Any]]) -> list[Any]:
    """The choices of all chunks; of deltas the text, as an event may have several tokens."""
    chunks = [data for event, _, data in events if event == "chunk"]
    deltas = [data["choices"][0]["text"] for event, _, data in events if event == "delta"]
    assert bool(chunks) != bool(deltas)
    return [data if data == "[DONE]" else data["choices"] for data in chunks] or ["".join(deltas)]


@pytest.mark.parametrize(("stream", "outcome"), [(True, "failed"), (False, "completed")])
def test_a_job_whose_log_has_lost_an_entry_is_not_continued(
    stack: Stack, stream: bool, outcome: str
) -> None:
    """It begins anew if no client has seen output, else it fails."""
    gateway = stack.gateway(lease_s=4)
    victim = stack.worker(**killer(10))
    mark = Call(gateway, CHAT, {**marked(40), "stream": stream})
    killed(victim)
    job_id = queued_again(gateway)
    with redis.Redis.from_url(stack.redis_url) as client:
        (log,) = client.keys(f"*log:{job_id}")
        assert client.llen(log) > 1
        client.lpop(log)
    survivor = stack.worker(**FAST)
    mark.join(60)
    shown = job(gateway, job_id)
    assert shown["state"] == outcome
    assert survivor.metric("flotilla_continuations_refused_total", reason="log") == 1
    if stream:
        last = mark.body.decode().rstrip().rpartition("\n\n")[2]
        code = json.loads(last.removeprefix("data: "))["error"]["code"]
        assert code in {shown["error"]["code"], "stream_reset"}
        assert b"[DONE]" not in mark.body
    else:
        assert json.loads(mark.body)["usage"]["completion_tokens"] == 40


@pytest.mark.parametrize(("stream", "outcome"), [(True, "failed"), (False, "completed")])
def test_a_job_that_the_engine_refuses_to_continue(
    stack: Stack, stream: bool, outcome: str
) -> None:
    gateway = stack.gateway(lease_s=4)
    victim = stack.worker(**killer(10))
    mark = Call(gateway, CHAT, {**marked(40), "stream": stream})
    killed(victim)
    survivor = stack.worker(**FAST, sim_faults="refuse_past=1")
    mark.join(60)
    shown = job(gateway, mark.job_id)
    assert shown["state"] == outcome
    outcomes = [attempt["outcome"] for attempt in shown["attempts"]]
    assert outcomes[:2] == ["worker_lost", "not_continued"]
    assert survivor.metric("flotilla_continuations_refused_total", reason="engine") == 1
    if stream:
        assert shown["error"]["code"] == "worker_lost"
        assert json.loads(mark.body.decode().rstrip().rpartition("data: ")[2])["error"]
    else:
        assert json.loads(mark.body)["usage"]["completion_tokens"] == 40
        # The last steps of the killed worker may not have left it.
        assert survivor.metric("flotilla_tokens_decoded_again_total") >= 5


def queued_again(gateway: Process) -> str:
    """The id of the only job, once it is queued."""

    def queued() -> list[Any]:
        listed = httpx.get(f"{gateway.url}/jobs", params={"state": "queued"}).json()
        return list(listed["data"])

    (only,) = wait_for(queued, "the job is queued again")
    return str(only["id"])

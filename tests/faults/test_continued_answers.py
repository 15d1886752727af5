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

import pytest

from tests.harness.client import CHAT, MODEL, chat, http, job, outcomes, states, submit
from tests.harness.damage import lose_first_entry
from tests.harness.fleet import Process, Stack
from tests.harness.waiting import wait_for

COMPLETIONS = "/v1/completions"
ANTHROPIC = "/v1/messages"
SLOW = {"sim_step_ms": 25, "sim_step_us_per_seq": 0, "lease_s": 4}
CRAWLING = {**SLOW, "sim_step_ms": 1000}
"""No answer ends before its worker is killed."""
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
            found.append((CHAT, chat(f"chat {number} {sorted(options)}", **body, **options)))
        found += [(COMPLETIONS, {"model": MODEL, **b, **options}) for b in COMPLETION_BODIES]
    for number in range(6):
        body = chat(f"message {number}", max_tokens=60, stream=number % 2 == 0)
        found.append((ANTHROPIC, body))
    return found


class WholeCall(threading.Thread):
    """One request in a thread of its own, with all bytes of its answer."""

    def __init__(self, gateway: Process, path: str, body: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self.status = 0
        self.body = b""
        self.job_id = ""
        self._gateway, self._path, self._request = gateway, path, body
        self.start()

    def run(self) -> None:
        url = f"{self._gateway.url}{self._path}"
        with http.stream("POST", url, json=self._request, timeout=120) as answer:
            self.status, self.job_id = answer.status_code, answer.headers["x-flotilla-job-id"]
            self.body = answer.read()

    @property
    def answer(self) -> bytes:
        """The answer without what is another's in each job, and without comments."""
        body = re.sub(rb"(?m)^:.*\n", b"", self.body.replace(self.job_id.encode(), b"JOB"))
        return re.sub(rb'"created": ?\d+', b"", body)

    def check_one_creation(self) -> None:
        """All chunks have one time of creation. Anthropic's messages have none."""
        found = set(re.findall(rb'"created": ?\d+', self.body))
        assert len(found) == (self._path != ANTHROPIC)


def marked(n: int) -> dict[str, Any]:
    return chat(MARK, stream=True, ignore_eos=True, max_tokens=n)


def killer(after_tokens: int) -> dict[str, Any]:
    """Settings of a worker that kills itself once so many tokens of the marked answer are out."""
    return {**SLOW, "sim_faults": f"kill_on_prompt={MARK},kill_after_tokens={after_tokens}"}


def killed(worker: Process) -> None:
    assert worker.popen.wait(60) == -signal.SIGKILL


def kill_in_the_middle(gateway: Process, worker: Process, jobs: int, attempt: int) -> None:
    """Kill it when this attempt of all jobs runs there, and each has got a token or more there."""

    def has_all() -> bool:
        listed = http.get(f"{gateway.url}/jobs?limit=100&state=in_progress").json()["data"]
        return [len(each["attempts"]) for each in listed] == [attempt] * jobs

    wait_for(has_all, "it has all")
    steps = "flotilla_engine_steps_total"
    before = worker.metric(steps)
    wait_for(lambda: worker.metric(steps) >= before + 3, "all have begun")
    worker.kill()


def test_answers_of_every_class_are_those_of_a_worker_that_was_never_killed(stack: Stack) -> None:
    gateway = stack.gateway(lease_s=4)
    victim = stack.worker(**CRAWLING)
    calls = [WholeCall(gateway, path, body) for path, body in requests()]
    kill_in_the_middle(gateway, victim, len(calls), 1)
    kill_in_the_middle(gateway, stack.worker(**CRAWLING), len(calls), 2)
    survivor = stack.worker(**FAST)
    for call in calls:
        call.join(60)
    undisturbed = [WholeCall(gateway, path, body) for path, body in requests()]
    for call in undisturbed:
        call.join(60)
    for call, other in zip(calls, undisturbed, strict=True):
        assert (call.status, other.status) == (200, 200)
        assert call.answer == other.answer
        call.check_one_creation()
        shown, expected = job(gateway, call.job_id), job(gateway, other.job_id)
        assert shown["usage"] == expected["usage"]
        assert shown.get("text") == expected.get("text")
        assert outcomes(gateway, call.job_id) == ["worker_lost", "worker_lost", "completed"]
    assert survivor.metric("flotilla_jobs_continued_total", how="prefill") == len(calls)
    assert survivor.metric("flotilla_tokens_taken_over_total") >= 2 * len(calls)
    assert survivor.metric("flotilla_tokens_decoded_again_total") == 0
    assert survivor.metric("flotilla_continuations_refused_total") == 0


@pytest.mark.parametrize("after_tokens", [1, 39])
def test_a_worker_that_is_killed_after_the_first_or_before_the_last_token(
    stack: Stack, after_tokens: int
) -> None:
    gateway = stack.gateway(lease_s=4)
    victim = stack.worker(**killer(after_tokens))
    mark = WholeCall(gateway, CHAT, marked(40))
    killed(victim)
    stack.worker(**FAST)
    mark.join(60)
    other = WholeCall(gateway, CHAT, marked(40))
    other.join(60)
    assert mark.answer == other.answer
    assert mark.answer.endswith(b"data: [DONE]\n\n")
    assert outcomes(gateway, mark.job_id) == ["worker_lost", "completed"]


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
    job_id, found = submit(gateway, body), []
    with http.stream("GET", f"{gateway.url}/jobs/{job_id}/events", timeout=60) as answer:
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
    mark = WholeCall(gateway, CHAT, {**marked(40), "stream": stream})
    killed(victim)
    (listed,) = http.get(f"{gateway.url}/jobs").json()["data"]
    job_id = listed["id"]
    wait_for(lambda: states(gateway, [job_id]) == {"queued"}, "the job is queued again")
    lose_first_entry(stack.redis_url, job_id)
    stack.worker(**FAST)
    mark.join(60)
    shown = job(gateway, job_id)
    assert shown["state"] == outcome
    if stream:
        last = mark.body.decode().rstrip().rpartition("data: ")[2]
        code = json.loads(last)["error"]["code"]
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
    mark = WholeCall(gateway, CHAT, {**marked(40), "stream": stream})
    killed(victim)
    survivor = stack.worker(**FAST, sim_faults="refuse_past=1")
    mark.join(60)
    shown = job(gateway, mark.job_id)
    assert shown["state"] == outcome
    assert outcomes(gateway, mark.job_id) == ["worker_lost", outcome]
    assert survivor.metric("flotilla_continuations_refused_total", reason="engine") == 1
    if stream:
        assert shown["error"]["code"] == "worker_lost"
        assert json.loads(mark.body.decode().rstrip().rpartition("data: ")[2])["error"]
    else:
        assert json.loads(mark.body)["usage"]["completion_tokens"] == 40
        # The last steps of the killed worker may not have left it.
        assert survivor.metric("flotilla_tokens_decoded_again_total") >= 5

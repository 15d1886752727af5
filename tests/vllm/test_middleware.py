"""An operator's middleware around real vLLM: retrieval, and a guard that reads each answer before
its client gets any of it. What it withholds is nowhere, also when another worker ends the answer.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from docs.examples.retrieval import Retrieval
from tests.harness.client import CHAT, http, job, outcomes, submit
from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisServer
from tests.harness.stored import text_of
from tests.harness.waiting import wait_for

pytestmark = pytest.mark.vllm

LOADED_S, ANSWER_S = 600.0, 300.0
MODEL = "guarded"
MIDDLEWARE = "--middleware docs.examples.retrieval.Retrieval --middleware docs.examples.guard.Guard"
WITHHELD = "The answer was withheld by the safety check (S9)."
LONG = 400
"""Tokens: some are still to come when a worker is killed."""


class GuardModel(BaseHTTPRequestHandler):
    """In place of Llama Guard: an answer to a question with the word `forbidden` is unsafe."""

    answers: dict[str, str]
    """By the question."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        *_, question, answer = (message["content"] for message in body["messages"])
        self.answers[question] = answer
        verdict = "unsafe\nS9" if "forbidden" in question else "safe"
        data = json.dumps({"choices": [{"message": {"content": verdict}}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def read_by_guard() -> Iterator[dict[str, str]]:
    """The answers that the guard's model has read, by their question; workers find the model."""
    GuardModel.answers = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), GuardModel)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GUARD_URL", f"http://127.0.0.1:{server.server_port}/v1")
        yield GuardModel.answers
    server.shutdown()
    server.server_close()


class Fleet:
    """A gateway, and workers whose answers a guard reads."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self.gateway = stack.gateway(lease_s=15)
        self.worker = self.new_worker()

    def new_worker(self, engine_args: str = MIDDLEWARE, **changes: Any) -> Process:
        """Start a worker with the demo model; it is ready later."""
        self.worker = self._stack.worker(
            wait=False,
            engine="vllm",
            lease_s=15,
            served_model_name=MODEL,
            engine_args=f"--dtype float32 --kv-cache-memory-bytes 256M {engine_args}",
            **changes,
        )
        return self.worker

    def has_loaded(self) -> None:
        """Wait for the worker."""
        wait_for(self.worker.ready, "vLLM is ready", LOADED_S, [self.worker])


@pytest.fixture(scope="module")
def fleet(module_stack: Stack, read_by_guard: dict[str, str]) -> Fleet:
    fleet = Fleet(module_stack)
    fleet.has_loaded()
    return fleet


def chat(question: str, most: int = 30, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    fixed = {"model": MODEL, "max_tokens": most, "temperature": 0, "ignore_eos": True}
    return fixed | {"messages": messages} | fields


def ask(fleet: Fleet, body: dict[str, Any], path: str = CHAT) -> httpx.Response:
    return http.post(fleet.gateway.url + path, json=body, timeout=ANSWER_S)


def text(answer: str) -> str:
    """What an answer says, streamed or not."""
    if answer.startswith("{"):
        said: str = json.loads(answer)["choices"][0]["message"]["content"]
        return said
    events = [json.loads(line[6:]) for line in answer.split("\n") if line.startswith("data: {")]
    choices = [choice for event in events for choice in event["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def job_of(answer: httpx.Response) -> str:
    return str(answer.headers["x-flotilla-job-id"])


def ended(fleet: Fleet, job_id: str) -> dict[str, Any]:
    """The record of a job, once it has ended."""
    over = ("completed", "failed")
    wait_for(lambda: job(fleet.gateway, job_id)["state"] in over, "it ends", ANSWER_S)
    return job(fleet.gateway, job_id)


def check_nowhere(fleet: Fleet, redis: RedisServer, job_id: str, withheld: str) -> None:
    """The text is in no answer about the job, and not in what Redis has."""
    assert len(withheld) > 40
    part = withheld[10:30]
    jobs = f"{fleet.gateway.url}/jobs"
    for path in ("", "/events", "/stream", "/result", "/why"):
        shown = http.get(f"{jobs}/{job_id}{path}", timeout=ANSWER_S).text
        assert part not in shown
        assert "token_ids" not in shown
    assert part not in text_of(redis.url, job_id)


def test_passages_that_fit_the_question_go_in_front_of_a_chat(fleet: Fleet) -> None:
    prompts = {
        question: ask(fleet, chat(question, 1)).json()["usage"]["prompt_tokens"]
        for question in ("lease lease", "xyzzy xyzzy")
    }
    assert prompts["lease lease"] > prompts["xyzzy xyzzy"] + 10


async def test_retrieval_takes_the_best_passages_and_leaves_odd_bodies_alone() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(json.loads((await receive())["body"]))

    async def call(body: Any) -> Any:
        async def receive() -> Any:
            return {"type": "http.request", "body": json.dumps(body).encode()}

        await retrieval({"type": "http", "path": CHAT}, receive, receive)
        return passed[-1]

    passed: list[Any] = []
    retrieval: Any = Retrieval(app)
    question = "How does the autoscaler count waiting jobs?"
    first, *_ = retrieval.search(question)
    assert first.startswith("The autoscaler decides")
    system, asked = (await call(chat(question)))["messages"]
    assert (system["role"], asked["content"]) == ("system", question)
    assert first in system["content"]
    for odd in ({}, {"messages": 1}, {"messages": [1, {"role": "user", "content": [2]}]}):
        assert await call(odd) == odd


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_safe_is_passed_on(
    fleet: Fleet, read_by_guard: dict[str, str], redis_server: RedisServer, stream: bool
) -> None:
    question = f"What is a queue? {stream}"
    answer = ask(fleet, chat(question, stream=stream))
    assert answer.status_code == 200
    assert text(answer.text) == read_by_guard[question]
    assert read_by_guard[question][10:30] in text_of(redis_server.url, job_of(answer))
    if stream:
        assert answer.text.count("data: {") > 5, "its chunks, one by one"
        assert answer.text.endswith("data: [DONE]\n\n")


LOGPROBS = {"logprobs": True, "top_logprobs": 2}
TWO = {"stream": True, "n": 2, "temperature": 1.5, "seed": 1, **LOGPROBS}


@pytest.mark.parametrize("fields", [{}, {"stream": True}, TWO])
def test_an_answer_that_is_withheld_is_nowhere(
    fleet: Fleet, read_by_guard: dict[str, str], redis_server: RedisServer, fields: Any
) -> None:
    question = f"Something forbidden: {fields}"
    answer = ask(fleet, chat(question, **fields))
    if answer.status_code != 200:  # else it is an event behind a comment
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "content_filter"
    assert WITHHELD in answer.text
    shown = ended(fleet, job_of(answer))
    assert (shown["state"], shown["text"]) == ("failed", "")
    assert shown["error"]["message"] == WITHHELD
    assert shown["usage"]["completion_tokens"] == 30 * fields.get("n", 1)
    check_nowhere(fleet, redis_server, shown["id"], read_by_guard[question])


def test_without_its_model_a_guard_passes_nothing_on(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GuardModel, "do_POST", lambda self: self.send_error(503))
    answer = ask(fleet, chat("hello"))
    assert (answer.status_code, "choices" in answer.json()) == (500, False)


def test_a_worker_that_lacks_its_middleware_says_so_and_ends(fleet: Fleet) -> None:
    loaded = fleet.worker
    lacking = fleet.new_worker("--middleware no.such.Thing")
    fleet.worker = loaded
    wait_for(lambda: lacking.popen.poll() is not None, "it has ended", LOADED_S)
    assert lacking.popen.returncode == 2
    assert "no.such.Thing can't be imported" in lacking.log.read_text()


def test_another_worker_ends_answers_and_its_guard_reads_all_of_them(
    fleet: Fleet, read_by_guard: dict[str, str], redis_server: RedisServer
) -> None:
    questions = {
        f"{what}, {stream}": {"stream": stream, **fields}
        for what in ("A story", "A forbidden story")
        for stream, fields in ((True, {}), (False, LOGPROBS))
    }
    bodies = [chat(question, LONG, **fields) for question, fields in questions.items()]
    undisturbed = [ended(fleet, submit(fleet.gateway, body))["id"] for body in bodies]
    read = dict(read_by_guard)
    read_by_guard.clear()
    ids = [submit(fleet.gateway, body) for body in bodies]

    def tokens(job_id: str) -> int:
        shown = job(fleet.gateway, job_id)
        assert not shown.get("text")
        return int((shown.get("usage_so_far") or {}).get("completion_tokens", 0))

    wait_for(lambda: all(tokens(job_id) > 5 for job_id in ids), "all have begun", ANSWER_S)
    assert not read_by_guard, "none has ended"
    fleet.worker.popen.kill()
    fleet.new_worker()
    fleet.has_loaded()
    shown = [ended(fleet, job_id) for job_id in ids]
    assert {question: read_by_guard[question] for question in questions} == {
        question: read[question] for question in questions
    }
    for job_id, before, question, record in zip(ids, undisturbed, questions, shown, strict=True):
        assert outcomes(fleet.gateway, job_id)[0] == "worker_lost"
        results = [
            http.get(f"{fleet.gateway.url}/jobs/{each}/result", timeout=ANSWER_S).text
            for each in (job_id, before)
        ]
        if "forbidden" in question:
            assert record["error"]["message"] == WITHHELD
            check_nowhere(fleet, redis_server, job_id, read[question])
        else:
            assert record["state"] == "completed"
            assert text(results[0]) == text(results[1]) == read[question]
    assert fleet.worker.metric("flotilla_continuations_refused_total") == 0

"""Hooks on real workers: the examples, and a stream that is continued after a killed worker."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from tests.harness.client import http
from tests.harness.fleet import Process, Stack
from tests.harness.waiting import wait_for
from worker.plugins.hooks.examples import rag
from worker.plugins.hooks.hook_types import Request

CHAT = "/v1/chat/completions"
HOOKS = "tests.e2e.hooks.stand_in"
FAST: dict[str, Any] = {"sim_step_ms": 2, "sim_step_us_per_seq": 0}
LONGEST = 500


class Guard(BaseHTTPRequestHandler):
    """A stand-in for a server of Llama Guard: long answers are unsafe, and a word in questions."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        last = body["messages"][-1]
        in_answer = last["role"] == "assistant" and len(last["content"]) > LONGEST
        unsafe = in_answer or (last["role"] == "user" and "forbidden" in last["content"])
        verdict = "unsafe\nS9" if unsafe else "safe"
        data = json.dumps({"choices": [{"message": {"content": verdict}}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def guard_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A guard's server; workers that are started find it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Guard)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    monkeypatch.setenv("GUARD_URL", url)
    yield url
    server.shutdown()
    server.server_close()


def chat(question: str, max_tokens: int = 5, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    fixed = {"max_tokens": max_tokens, "ignore_eos": True}
    return {"model": "simulated", "messages": messages} | fixed | fields


def post(gateway: Process, body: dict[str, Any]) -> httpx.Response:
    return http.post(gateway.url + CHAT, json=body, timeout=60)


def chunks(stream: str) -> list[dict[str, Any]]:
    data = [event.removeprefix("data: ") for event in stream.split("\n\n")]
    return [json.loads(each) for each in data if each.startswith("{")]


def job(gateway: Process, job_id: str) -> dict[str, Any]:
    shown: dict[str, Any] = http.get(f"{gateway.url}/jobs/{job_id}").json()
    return shown


def test_passages_that_fit_the_question_go_in_front_of_a_chat(stack: Stack) -> None:
    gateway = stack.gateway()
    stack.worker(hooks="before=worker.plugins.hooks.examples.rag:retrieve", **FAST)
    prompts = {
        question: post(gateway, chat(question)).json()["usage"]["prompt_tokens"]
        for question in ("lease lease", "xyzzy xyzzy")
    }
    assert prompts["lease lease"] > prompts["xyzzy xyzzy"] + 10


def test_retrieval_takes_the_best_passages() -> None:
    body = chat("How does the autoscaler count waiting jobs?")
    request = Request(CHAT, "job", body, b"")
    rag.retrieve(request)
    first, *others = request.state["passages"]
    assert first.startswith("The autoscaler decides")
    assert len(others) < rag.N_PASSAGES
    system, question = request.body["messages"]
    assert system["role"] == "system"
    assert first in system["content"]
    assert question["content"] == "How does the autoscaler count waiting jobs?"
    for malformed in ({}, {"messages": 1}, {"messages": [1, {"role": "user", "content": [2]}]}):
        rag.retrieve(Request(CHAT, "job", dict(malformed), b""))


@pytest.mark.usefixtures("guard_url")
def test_a_guard_refuses_requests_and_answers(stack: Stack) -> None:
    gateway, check = stack.gateway(), "worker.plugins.hooks.examples.guard"
    stack.worker(hooks=f"before={check}:check_request,after={check}:check_answer", **FAST)
    for stream in (False, True):
        fine = post(gateway, chat("hello", stream=stream))
        assert fine.status_code == 200
        refused = post(gateway, chat("a forbidden thing", stream=stream))
        too_long = post(gateway, chat("hello", 300, stream=stream))
        for answer, what in ((refused, "The request"), (too_long, "The answer")):
            message = f"{what} was refused by the safety check (S9)."
            if answer.status_code == 200:  # a stream that began with a comment
                assert (
                    "".join(chunk["error"]["message"] for chunk in chunks(answer.text)) == message
                )
                continue
            assert answer.status_code == 400
            error = answer.json()["error"]
            assert (error["code"], error["message"]) == ("content_filter", message)
        shown = job(gateway, too_long.headers["x-flotilla-job-id"])
        assert (shown["state"], shown["text"]) == ("failed", "")
        assert shown["usage"]["completion_tokens"] == 300
        assert shown["error"]["code"] == "content_filter"


def test_without_its_guard_nothing_is_passed_on(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUARD_URL", "http://127.0.0.1:9/v1")
    gateway = stack.gateway()
    stack.worker(hooks="after=worker.plugins.hooks.examples.guard:check_answer", **FAST)
    answer = post(gateway, chat("hello"))
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "hook_failed"


def test_an_answer_does_not_go_on_with_another_passage(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that has a part gets an error; an answer that nobody has seen begins anew."""
    gateway = stack.gateway(lease_s=4)
    settings = FAST | {"sim_step_ms": 20, "hooks": f"before={HOOKS}:add_passage"}
    monkeypatch.setenv("PASSAGE", "the old one")
    faults = "kill_on_prompt=mark,kill_after_tokens=20"
    victim = stack.worker(**settings, sim_faults=faults)
    answers: dict[bool, httpx.Response] = {}

    def call(stream: bool) -> None:
        answers[stream] = post(gateway, chat("mark", 60, stream=stream, seed=1))

    calls = [threading.Thread(target=call, args=(stream,)) for stream in (True, False)]
    for each in calls:
        each.start()
    assert victim.popen.wait(60) == -signal.SIGKILL
    monkeypatch.setenv("PASSAGE", "a new one")
    survivor = stack.worker(**settings)
    for each in calls:
        each.join(60)
    undisturbed = post(gateway, chat("mark", 60, seed=1))
    assert json.loads(answers[False].content)["choices"] == undisturbed.json()["choices"]
    *_, error = chunks(answers[True].text)
    assert error["error"]["code"] == "context_changed"
    lost = job(gateway, answers[True].headers["x-flotilla-job-id"])
    assert (lost["state"], lost["error"]["code"]) == ("failed", "context_changed")
    outcomes = [attempt["outcome"] for attempt in lost["attempts"]]
    assert outcomes == ["worker_lost", "failed"]
    assert survivor.metric("flotilla_continuations_refused_total", reason="context") >= 1


def test_a_worker_whose_hooks_are_missing_does_not_start(stack: Stack) -> None:
    worker = stack.worker(wait=False, hooks="after=no.such:hook")
    wait_for(lambda: worker.popen.poll() is not None, "it has ended")
    assert worker.popen.returncode == 2
    assert "no.such:hook can't be imported" in worker.log.read_text()

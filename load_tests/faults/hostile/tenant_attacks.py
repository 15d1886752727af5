"""What one tenant can do with bodies and calls that the gateway accepts."""

from __future__ import annotations

import json
import threading
import time
from typing import Any
from urllib.parse import quote

from load_tests.faults.hostile.anonymous_attacks import BODY_BYTES
from load_tests.faults.hostile.attack import (
    CALL_S,
    AttackTarget,
    Prepare,
    call,
    message,
    summarize,
    together,
)
from load_tests.faults.hostile.raw_http import KEY, NEIGHBOUR_KEY, RawResponse
from load_tests.systems.engine import CHAT_PATH, MODEL

_SEQUENCES = (64, 32, 16, 8, 3, 1)
_APPENDS = 14
_LISTS = 190_000
_FILTERS = 3000
_GRAMMARS = 48
_REPLAYS = 300
_PROMPTS = 1024
NEIGHBOUR_SERVED = "the neighbour's: all 200"
"""What the answer contains if another tenant's grammars were compiled meanwhile."""
REFUSED = "all refused"
"""The answer of an attack of which nothing may get past the gateway."""
SHORT_PROMPTS = ["one two three " * (BODY_BYTES // _PROMPTS // 14 - 1)] * _PROMPTS
"""8 MB of prompts that each fit into the model, as many as vLLM accepts."""
_ASK = [{"role": "user", "content": "Say something."}]
_URL = "http://127.0.0.1:9/picture.png"
_IMAGE = {"type": "image_url", "image_url": {"url": _URL}}
_FETCHED: dict[str, tuple[str, dict[str, Any]]] = {
    "tool_use": (
        CHAT_PATH,
        {"messages": [{"role": "user", "type": "tool_use", "content": [_IMAGE]}]},
    ),
    "conversation": (
        "/v1/conversations",
        {"items": [{"role": "user", "content": [{"type": "input_image", "image_url": _URL}]}]},
    ),
    "embed": ("/v2/embed", {"images": [_URL]}),
    "systemone": ("/v1/systemone", {"images": [_URL], "audio": [_URL], "videos": [_URL]}),
    "prompt_embeds": (
        CHAT_PATH,
        {"messages": [{"role": "user", "content": [{"type": "prompt_embeds", "data": "eA=="}]}]},
    ),
}
"""Ways to have a worker fetch a URL, or unpickle a tensor."""


def submit_large_jobs(n: int) -> Prepare:
    """Return a preparation: n jobs with a prompt of nearly 8 MB. They fail; their records stay."""

    def prepare(target: AttackTarget) -> None:
        content = "x" * (BODY_BYTES - 1000)
        inner = {"model": MODEL, "messages": [{"role": "user", "content": content}]}
        for _ in range(n):
            _must(call(target, "POST", "/jobs", {"body": inner}), "202")

    return prepare


def ordinary(target: AttackTarget) -> str:
    """Send ordinary requests for a while, one after the other: the figures for comparison."""
    body = {"model": MODEL, "messages": _ASK, "max_tokens": 8}
    until = time.monotonic() + target.idle_s
    answers = [call(target, "POST", CHAT_PATH, body)]
    while time.monotonic() < until:
        answers.append(call(target, "POST", CHAT_PATH, body))
    return summarize(answers)


def submit_large_answer(target: AttackTarget) -> str:
    """Run the job with the largest answer that is accepted, to its end; return its id and `n`."""
    chat = {
        "model": MODEL,
        "messages": _ASK,
        "max_tokens": 300,
        "ignore_eos": True,
        "logprobs": True,
        "top_logprobs": 20,
    }
    for n in _SEQUENCES:
        answer = call(target, "POST", "/jobs", {"body": {**chat, "n": n}})
        if answer.status == "202":
            break
    job_id = target.made = json.loads(_must(answer, "202").body)["id"]
    until = time.monotonic() + CALL_S
    while job_id not in _ended(target):
        if time.monotonic() > until:
            raise RuntimeError(f"{job_id} has not ended in {CALL_S:.0f} s")
        time.sleep(0.25)
    return f"{job_id} n={n}"


def prepare_large_answer(target: AttackTarget) -> None:
    """Run the job with the largest answer; its id is what was made."""
    submit_large_answer(target)


def prepare_large_response(target: AttackTarget) -> None:
    """Store a large response."""
    body = {
        "model": MODEL,
        "input": "Say something.",
        "max_output_tokens": 800,
        "top_logprobs": 20,
        "include": ["message.output_text.logprobs"],
        "ignore_eos": True,
        "stream": True,
    }
    answer = _must(call(target, "POST", "/v1/responses", body), "200")
    target.made = answer.body.partition(b'"id":')[2].split(b'"')[1].decode()


def prepare_conversation(target: AttackTarget) -> None:
    """Make a conversation of 8 MB, as far as it is accepted."""
    made = call(target, "POST", "/v1/conversations", {})
    target.made = json.loads(made.body)["id"]
    lists: dict[str, Any] = {"role": "user", "content": "x", "x": [[]] * _LISTS}
    text: dict[str, Any] = {"role": "user", "content": "x" * (3 * _LISTS)}
    path, item = f"/v1/conversations/{target.made}/items", lists
    for _ in range(_APPENDS):
        if call(target, "POST", path, {"items": [item]}).status != "200":
            item = text  # lists are refused; a long text has as many bytes
            call(target, "POST", path, {"items": [item]})


def keep_conversations(target: AttackTarget) -> str:
    """Leave four conversations of 8 MB in Redis."""
    began = time.monotonic()
    for _ in range(4):
        prepare_conversation(target)
    return f"4 conversations in {time.monotonic() - began:.1f} s"


def replay_in_conversation(target: AttackTarget) -> str:
    """Repeat a request with an idempotency key while its first one runs, then read its items."""
    made = call(target, "POST", "/v1/conversations", {})
    conversation_id = json.loads(made.body)["id"]
    body = {
        "model": MODEL,
        "input": "Say something.",
        "max_output_tokens": 200,
        "conversation": conversation_id,
        "background": True,
    }
    key = {"idempotency-key": f"replayed-{conversation_id}"}
    answers = [call(target, "POST", "/v1/responses", body, headers=key) for _ in range(_REPLAYS)]
    listed = call(target, "GET", f"/v1/conversations/{conversation_id}/items")
    return f"{summarize(answers)}; then items: {summarize([listed])}"


def many_filters(target: AttackTarget) -> str:
    """Send 3,000 different filters with 330 `*`, or with 16 where those are refused."""
    first = call(target, "GET", "/jobs?filter=" + quote("id:00000" + "*a" * 330))
    stars = 330 if first.status == "200" else 16
    answers = [
        call(target, "GET", f"/jobs?filter={quote(f'id:{n:05}' + '*a' * stars)}")
        for n in range(_FILTERS)
    ]
    return f"{stars} stars: {summarize([first, *answers])}"


def slow_grammars(target: AttackTarget) -> str:
    """Send 48 slow grammars at once; tell how long a neighbour's small one takes meanwhile."""

    def ask(regex: str, key: str) -> RawResponse:
        body = {"model": MODEL, "messages": _ASK, "max_tokens": 4}
        grammar = {"structured_outputs": {"regex": regex}}
        return call(target, "POST", CHAT_PATH, {**body, **grammar}, key=key)

    slow = [lambda n=n: ask(f"((a|b|c|d{n}){{1,400}}){{1,400}}", KEY) for n in range(_GRAMMARS)]
    alone = ask("(yes|no)", NEIGHBOUR_KEY)
    found: list[RawResponse] = []
    attackers = threading.Thread(target=lambda: found.extend(together(slow)))
    attackers.start()
    time.sleep(0.5)
    small = [ask(f"(yes|no|maybe{n})", NEIGHBOUR_KEY) for n in range(5)]
    attackers.join()
    served = f"{NEIGHBOUR_SERVED}; " * all(answer.status == "200" for answer in small)
    return (
        f"{summarize(found)}; {served}the neighbour's: {summarize(small)}; "
        f"one before: {summarize([alone])}"
    )


def urls_and_tensors(target: AttackTarget) -> str:
    """Send the bodies that make a worker fetch a URL or unpickle a tensor."""
    passed = []
    for name, (path, body) in _FETCHED.items():
        answer = call(target, "POST", path, {"model": MODEL, "max_tokens": 1, **body})
        if answer.status not in {"400", "404", "422"}:
            passed.append(f"{name} {answer.status}")
    return f"PASSED: {', '.join(passed)}" if passed else REFUSED


def _ended(target: AttackTarget) -> str:
    states = ("completed", "failed")
    listed = [call(target, "GET", f"/jobs?state={state}&limit=1").body for state in states]
    return b"".join(listed).decode(errors="replace")


def _must(answer: RawResponse, status: str) -> RawResponse:
    if answer.status != status:
        raise RuntimeError(f"the preparation was answered {answer.status} {message(answer.body)}")
    return answer

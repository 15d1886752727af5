"""What one tenant can do with bodies and calls that are small: the second round of attacks."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from load_tests.faults.hostile.raw_http import (
    KEY,
    NEIGHBOUR_KEY,
    RawResponse,
    exchange,
    request,
)
from load_tests.faults.hostile.requests import (
    Attack,
    AttackTarget,
    Prepare,
    at_once,
    message,
    summarize,
)
from load_tests.systems.engine import CHAT_PATH

_LONG_S = 60.0
_SEQUENCES = (64, 32, 16, 8, 4)
_APPENDS = 14
_LISTS = 190_000
_FILTERS = 3000
_GRAMMARS = 48
_REPLAYS = 300
NEIGHBOUR_SERVED = "the neighbour's: all 200"
"""What the answer contains if another tenant's grammars were compiled meanwhile."""
REFUSED = "all refused"
"""The answer of an attack of which nothing may get past the gateway."""
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


def call(
    target: AttackTarget, method: str, path: str, body: Any = None, **headers: str
) -> RawResponse:
    """Send one request with the attacker's key, at most a minute; the answer to its end."""
    data = b"" if body is None else json.dumps(body).encode()
    return exchange(target.port, request(method, path, data, headers=headers), _LONG_S)


def posts(path: str, **fields: Any) -> Attack:
    """Return an attack that posts one body with these fields and the model."""
    return lambda target: summarize([call(target, "POST", path, {"model": target.model, **fields})])


def ordinary(target: AttackTarget) -> str:
    """Send ordinary requests for a while, one after the other: the figures for comparison."""
    body = {"model": target.model, "messages": _ASK, "max_tokens": 8}
    until = time.monotonic() + target.idle_s
    answers = [call(target, "POST", CHAT_PATH, body)]
    while time.monotonic() < until:
        answers.append(call(target, "POST", CHAT_PATH, body))
    return summarize(answers)


def submit_large_answer(target: AttackTarget) -> str:
    """Run the job with the largest answer that is accepted, to its end; return its id and `n`."""
    chat = {
        "model": target.model,
        "messages": _ASK,
        "max_tokens": 400,
        "ignore_eos": True,
        "logprobs": True,
        "top_logprobs": 20,
    }
    for n in _SEQUENCES:
        answer = call(target, "POST", "/jobs", {"body": {**chat, "n": n}})
        if answer.status == "202":
            break
    else:
        raise RuntimeError(f"no job was accepted: {answer.status} {message(answer.body)}")
    job_id = json.loads(answer.body)["id"]
    until = time.monotonic() + _LONG_S
    while job_id not in _ended(target):
        if time.monotonic() > until:
            raise RuntimeError(f"{job_id} has not ended in {_LONG_S:.0f} s")
        time.sleep(0.25)
    return f"{job_id} n={n}"


def _ended(target: AttackTarget) -> str:
    listed = call(target, "GET", "/jobs?state=completed&limit=1")
    failed = call(target, "GET", "/jobs?state=failed&limit=1")
    return (listed.body + failed.body).decode(errors="replace")


def read_large_answer(path: str) -> tuple[Attack, Prepare]:
    """Return an attack that reads a job's large answer four times, and its preparation.

    `path`: the call, with `{id}` for the job's id, `{digits}` for the digits of it.
    """
    made: list[str] = []

    def prepare(target: AttackTarget) -> None:
        made.append(submit_large_answer(target))

    def attack(target: AttackTarget) -> str:
        job_id, _, n = made[-1].partition(" ")
        where = path.format(id=job_id, digits=job_id.removeprefix("job_"))
        answers = [call(target, "GET", where) for _ in range(4)]
        return f"{n}: {summarize(answers)}"

    return attack, prepare


def read_large_response() -> tuple[Attack, Prepare]:
    """Return an attack that reads a stored response four times, and its preparation."""
    made: list[str] = []

    def prepare(target: AttackTarget) -> None:
        body = {
            "model": target.model,
            "input": "Say something.",
            "max_output_tokens": 800,
            "top_logprobs": 20,
            "include": ["message.output_text.logprobs"],
            "ignore_eos": True,
        }
        answer = call(target, "POST", "/v1/responses", body)
        if answer.status != "200":
            raise RuntimeError(f"the response: {answer.status} {message(answer.body)}")
        made.append(answer.body.partition(b'"id":')[2].split(b'"')[1].decode())

    def attack(target: AttackTarget) -> str:
        answers = [call(target, "GET", f"/v1/responses/{made[-1]}") for _ in range(4)]
        return summarize(answers)

    return attack, prepare


def new_conversation(target: AttackTarget) -> str:
    """Make a conversation of 8 MB, as far as it is accepted; return its id."""
    made = call(target, "POST", "/v1/conversations", {})
    conversation_id: str = json.loads(made.body)["id"]
    lists: dict[str, Any] = {"role": "user", "content": "x", "x": [[]] * _LISTS}
    text: dict[str, Any] = {"role": "user", "content": "x" * (3 * _LISTS)}
    path, item = f"/v1/conversations/{conversation_id}/items", lists
    for _ in range(_APPENDS):
        if call(target, "POST", path, {"items": [item]}).status != "200":
            item = text  # lists are refused; a long text has as many bytes
            call(target, "POST", path, {"items": [item]})
    return conversation_id


def read_conversation() -> tuple[Attack, Prepare]:
    """Return an attack that reads one item of a large conversation, ten calls at once."""
    made: list[str] = []

    def prepare(target: AttackTarget) -> None:
        made.append(new_conversation(target))

    def attack(target: AttackTarget) -> str:
        path = f"/v1/conversations/{made[-1]}/items?limit=1"
        return summarize(at_once([lambda: call(target, "GET", path)] * 10))

    return attack, prepare


def keep_conversations(target: AttackTarget) -> str:
    """Leave four conversations of 8 MB in Redis."""
    began = time.monotonic()
    for _ in range(4):
        new_conversation(target)
    return f"4 conversations in {time.monotonic() - began:.1f} s"


def replay_in_conversation(target: AttackTarget) -> str:
    """Repeat a request with an idempotency key while its first one runs, then read its items."""
    made = call(target, "POST", "/v1/conversations", {})
    conversation_id = json.loads(made.body)["id"]
    body = {
        "model": target.model,
        "input": "Say something.",
        "max_output_tokens": 200,
        "conversation": conversation_id,
        "background": True,
    }
    key = {"idempotency-key": f"replayed-{conversation_id}"}
    answers = [call(target, "POST", "/v1/responses", body, **key) for _ in range(_REPLAYS)]
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
        body = {
            "model": target.model,
            "messages": _ASK,
            "max_tokens": 4,
            "structured_outputs": {"regex": regex},
        }
        data = request("POST", CHAT_PATH, json.dumps(body).encode(), key=key)
        return exchange(target.port, data, _LONG_S)

    slow = [lambda n=n: ask(f"((a|b|c|d{n}){{1,400}}){{1,400}}", KEY) for n in range(_GRAMMARS)]
    alone = ask("(yes|no)", NEIGHBOUR_KEY)
    found: list[RawResponse] = []
    attackers = threading.Thread(target=lambda: found.extend(at_once(slow)))
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
    passed = Counter(
        f"{name} {answer.status}"
        for name, answer in _answers(target)
        if answer.status not in {"400", "404", "422"}
    )
    return f"PASSED: {', '.join(passed)}" if passed else REFUSED


def _answers(target: AttackTarget) -> Iterator[tuple[str, RawResponse]]:
    for name, (path, body) in _FETCHED.items():
        yield name, call(target, "POST", path, {"model": target.model, "max_tokens": 1, **body})

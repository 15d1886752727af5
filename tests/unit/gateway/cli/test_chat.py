"""`flotilla chat`."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.gateway.cli.conftest import Flotilla
from tests.unit.gateway.cli.samples import job
from tests.unit.gateway.cli.stub import Answer, StubGateway, error

CHAT = "POST /v1/chat/completions"


def stream(*texts: str, end: Any = None) -> Answer:
    chunks: list[Any] = [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in texts]
    chunks.append(end or {"choices": [], "usage": {"completion_tokens": len(texts)}})
    text = ": queued, position 2\n\n" + "".join(f"data: {json.dumps(each)}\n\n" for each in chunks)
    return Answer((text + "data: [DONE]\n\n").encode(), content_type="text/event-stream")


def test_one_question(flotilla: Flotilla, stub: StubGateway) -> None:
    stub.answers |= {
        "GET /v1/models": {"data": []},
        CHAT: stream("Hel", "lo"),
        "GET /jobs/job_1": job(),
    }
    result = flotilla(
        "chat", "Hi", "-m", "qwen", "--system", "Be short.", "--temperature", "0", "--stats"
    )
    assert (result.exit_code, result.stdout) == (0, "Hello\n")
    assert result.stderr.startswith("queue 500 ms, TTFT ")
    assert result.stderr.endswith("2 tokens, worker w-1\n")
    body = next(body for line, body in stub.sent() if line == CHAT)
    assert body["messages"] == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Hi"},
    ]
    assert (body["model"], body["temperature"], body["stream"]) == ("qwen", 0.0, True)


def test_a_conversation_keeps_what_was_said_until_clear(
    flotilla: Flotilla, stub: StubGateway
) -> None:
    stub.answers |= {"GET /v1/models": {"data": []}, CHAT: stream("Yes.")}
    result = flotilla("chat", stdin="One?\n\nTwo?\n/clear\nThree?\n")
    assert result.exit_code == 0, result.stderr
    asked = [body["messages"] for line, body in stub.sent() if line == CHAT]
    assert [[each["content"] for each in messages] for messages in asked] == [
        ["One?"], ["One?", "Yes.", "Two?"], ["Three?"]
    ]  # fmt: skip


def test_json_is_the_whole_answer(flotilla: Flotilla, stub: StubGateway) -> None:
    stub.answers |= {"GET /v1/models": {"data": []}, CHAT: {"choices": []}}
    assert json.loads(flotilla("chat", "Hi", "--json").stdout) == {"choices": []}


def test_errors_before_and_in_the_stream(flotilla: Flotilla, stub: StubGateway) -> None:
    stub.answers |= {"GET /v1/models": {"data": []}, CHAT: error("no such model", 404, "x")}
    assert flotilla("chat", "Hi").exit_code == 3
    stub.answers[CHAT] = stream("Hel", end={"error": {"message": "lost", "code": "worker_lost"}})
    result = flotilla("chat", "Hi")
    assert (result.exit_code, result.stderr) == (1, "flotilla: lost\n")
    stub.answers["GET /v1/models"] = error("no key", 401, "invalid_api_key")
    assert flotilla("chat", "Hi").exit_code == 4

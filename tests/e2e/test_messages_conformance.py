"""Anthropic's messages on every engine: names, order and arithmetic, never the words of an answer.

As test_engine_conformance.py, whose fixture gives each engine in turn.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.asgi_client import Recorder, Reply, call
from worker.engines.interface import JOURNAL, Engine

pytestmark = pytest.mark.asyncio(loop_scope="session")

PATH = "/v1/messages"
MESSAGE = ["id", "type", "role", "content", "model", "stop_reason", "stop_sequence", "usage"]
BODY = {
    "messages": [{"role": "user", "content": "Tell me a story about a queue."}],
    "max_tokens": 8,
    "temperature": 0,
}


async def model_of(engine: Engine) -> str:
    return str((await call(engine, "GET", "/v1/models")).json()["data"][0]["id"])


async def post(
    engine: Engine, journal: Recorder | None = None, path: str = PATH, **fields: Any
) -> Reply:
    body = {"model": await model_of(engine), **BODY, **fields}
    JOURNAL.set(journal)
    return await call(engine, "POST", path, body, {"x-request-id": "job-1"})


def events(reply: Reply) -> list[tuple[str, Any]]:
    """Name and data of each event; asserts that the body has nothing else."""
    found = []
    for block in reply.body.decode().removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
        assert found[-1][1]["type"] == found[-1][0]
    return found


async def test_a_whole_answer(engine: Engine) -> None:
    journal = Recorder()
    reply = await post(engine, journal)
    answer = reply.json()
    assert reply.headers["content-type"] == "application/json"
    assert list(answer) == [name for name in MESSAGE if name != "stop_sequence"]
    assert (answer["id"], answer["type"], answer["role"]) == (
        "chatcmpl-job-1",
        "message",
        "assistant",
    )
    (block,) = answer["content"]
    assert list(block) == ["type", "text"]
    assert answer["stop_reason"] == "max_tokens"
    assert answer["usage"] == {"input_tokens": journal.prompts[0], "output_tokens": 8}
    assert journal.texts == {(0, 0): block["text"]}


async def test_a_stream(engine: Engine) -> None:
    journal = Recorder()
    found = events(await post(engine, journal, stream=True))
    names = [name for name, _ in found]
    n_deltas = names.count("content_block_delta")
    assert n_deltas > 2
    assert names == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * n_deltas,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    start = found[0][1]
    assert list(start["message"]) == MESSAGE
    assert start["message"]["usage"] == {"input_tokens": journal.prompts[0], "output_tokens": 0}
    assert found[1][1] == {
        "type": "content_block_start",
        "content_block": {"type": "text", "text": ""},
        "index": 0,
    }
    delta = found[2][1]
    assert list(delta) == ["type", "delta", "index"]
    assert list(delta["delta"]) == ["type", "text"]
    end = found[-2][1]
    assert end["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert end["usage"] == {"input_tokens": journal.prompts[0], "output_tokens": 8}
    text = "".join(data["delta"]["text"] for name, data in found if name == "content_block_delta")
    assert text == (await post(engine)).json()["content"][0]["text"]


async def test_a_stop_sequence(engine: Engine) -> None:
    text = (await post(engine)).json()["content"][0]["text"]
    answer = (await post(engine, stop_sequences=[text[-4:]])).json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", text[-4:])


async def test_the_system_prompt_counts(engine: Engine) -> None:
    def tokens(reply: Reply) -> int:
        return int(reply.json()["usage"]["input_tokens"])

    plain = tokens(await post(engine))
    for system in ("Be very brief.", [{"type": "text", "text": "Be very brief."}]):
        assert tokens(await post(engine, system=system)) > plain


async def test_counting_tokens(engine: Engine) -> None:
    n_tokens = (await post(engine)).json()["usage"]["input_tokens"]
    counted = (await post(engine, path=f"{PATH}/count_tokens")).json()
    assert counted == {
        "input_tokens": n_tokens,
        "context_management": {"original_input_tokens": n_tokens},
    }


async def test_openais_fields_are_ignored(engine: Engine) -> None:
    answer = (await post(engine, n=3, seed=5, logprobs=True, service_tier="x")).json()
    assert len(answer["content"]) == 1


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"model": "nope"}, 404),
        ({"max_tokens": 0}, 400),
        ({"max_tokens": None}, 400),
        ({"max_tokens": "many"}, 400),
        ({"max_tokens": 100_000_000}, 400),
        ({"temperature": -1}, 400),
        ({"messages": "text"}, 400),
        ({"messages": [{"role": "user"}], "model": None}, 400),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors(engine: Engine, fields: dict[str, Any], status: int, stream: bool) -> None:
    reply = await post(engine, stream=stream, **fields)
    assert reply.status == status
    assert reply.json()["error"]["message"]

"""Real vLLM continues a response after any token: the client gets each event once, with the ids
that it has.

The engine is in this process, started once per run, as for test_real_vllm.py.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from shared.fleet.pool import DEMO_MODEL
from tests.e2e.continuation_classes import LogRecorder, run
from tests.harness.asgi_client import Reply
from worker.core.edits import ResponseEdit
from worker.core.resume import SentChunks
from worker.engines.interface import Engine

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.vllm]

PATH = "/v1/responses"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
COMMON = {
    "model": DEMO_MODEL,
    "input": "What is Flotilla?",
    "temperature": 0,
    "max_output_tokens": 24,
    "request_id": "resp_" + "0" * 27,
}
STREAM = {**COMMON, "stream": True}
ASK_WEATHER = {
    "input": "What is the weather in Paris?",
    "tools": [WEATHER],
    "max_output_tokens": 60,
}
BODIES: dict[str, dict[str, Any]] = {
    "not streamed": COMMON,
    "streamed": STREAM,
    "seeded": {**STREAM, "temperature": 1.2, "seed": 4},
    "logprobs": {**STREAM, "include": ["message.output_text.logprobs"], "top_logprobs": 2},
    "tool": {**STREAM, **ASK_WEATHER},
    "tool, not streamed": {**COMMON, **ASK_WEATHER},
}

_BY_CHANCE = {"created_at", "input_tokens_details", "logprob"}
_ID = re.compile(r"^(msg|fc|call|chatcmpl-tool)[_-]\w+$")


async def answer(
    engine: Engine, body: dict[str, Any], past: Any = None
) -> tuple[Reply, LogRecorder]:
    journal = LogRecorder(past)
    reply = await asyncio.create_task(run(engine, PATH, body, journal))
    assert reply.status == 200, reply.body
    return reply, journal


def events(reply: Reply) -> list[bytes]:
    """The events of a stream, each with its empty line, as a worker sends them."""
    edit = ResponseEdit("job", b"{}", "")
    return [edit.chunk(event + b"\n\n") for event in reply.body.split(b"\n\n") if event]


def joined(answer: bytes) -> list[Any]:
    """An answer without ids, times and what was cached. The deltas of one item are joined: vLLM may
    merge those for which its reader is late."""
    if answer.startswith(b"{"):
        return [normal(json.loads(answer))]
    found: list[Any] = []
    for block in filter(None, answer.split(b"\n\n")):
        event = normal(json.loads(block[block.index(b"data: ") + 6 :]))
        del event["sequence_number"]
        if found and found[-1]["type"] == event["type"] and "delta" in event:
            found[-1]["delta"] += event["delta"]
            found[-1]["logprobs"] = found[-1].get("logprobs", []) + event.get("logprobs", [])
        else:
            found.append(event)
    return found


def normal(value: Any) -> Any:
    """Without what differs by chance: ids, times, what was cached, the last digits of logprobs."""
    if isinstance(value, dict):
        return {name: normal(part) for name, part in value.items() if name not in _BY_CHANCE}
    if isinstance(value, list):
        return [normal(each) for each in value]
    return _ID.sub(r"\1", value) if isinstance(value, str) else value


def tokens(log: list[Any]) -> list[int]:
    return [token for _, delta in log for token in delta.token_ids]


@pytest.mark.parametrize("name", BODIES)
async def test_a_response_is_continued_after_any_token(name: str, vllm_engine: Engine) -> None:
    body = BODIES[name]
    for _ in range(5):  # on a busy machine vLLM merges tokens until they are read
        whole, journal = await answer(vllm_engine, body)
        if (n := len(journal.log)) > 5:
            break
    assert n > 5
    for k in sorted({1, n // 2, n - 1, n}):
        again, new = await answer(vllm_engine, body, journal.cut(k))
        assert not new.refused
        assert tokens(journal.log[:k] + new.log) == tokens(journal.log)
        assert joined(again.body) == joined(whole.body)
        if not body.get("stream"):
            continue
        n_sent = journal.chunks_before[k] if k < n else journal.chunks
        had = events(whole)[:n_sent]
        sent = SentChunks(had)
        rest = [event for event in map(sent.unsent, events(again)) if event is not None]
        sent.check_all_made()
        assert joined(b"".join(rest)) == joined(b"".join(events(whole)[n_sent:]))
        check_ids(had + rest)


def check_ids(stream: list[bytes]) -> None:
    """All events of an item, and the final response, have the same id; there is one time."""
    data = [json.loads(event[event.index(b"data: ") + 6 :]) for event in stream]
    added = [each["item"] for each in data if each["type"] == "response.output_item.added"]
    final = data[-1]["response"]
    assert [item["id"] for item in final["output"]] == [item["id"] for item in added]
    assert {each["item_id"] for each in data if "item_id" in each} == {item["id"] for item in added}
    calls = [item["call_id"] for item in added if "call_id" in item]
    assert [item["call_id"] for item in final["output"] if "call_id" in item] == calls
    assert len({each["response"]["created_at"] for each in data if "response" in each}) == 1
    assert [each["sequence_number"] for each in data] == list(range(len(data)))

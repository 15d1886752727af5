"""Bodies that are made to keep vLLM's validation busy, on real vLLM."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.harness.asgi_client import Reply, call
from worker.engines.interface import JOB, JOURNAL, Engine, JobFacts

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

MODEL = "flotilla-demo"
MOST_ERRORS = 500
MOST_BYTES = 200 << 20
RESPONSES, CHAT, COMPLETIONS = "/v1/responses", "/v1/chat/completions", "/v1/completions"
MESSAGE = {"role": "user", "content": "x"}
PART = {"type": "input_text", "text": "x"}
ANSWER = {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed"}
ANSWER_PART = {"type": "output_text", "text": "x", "annotations": []}

WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "500 items": (RESPONSES, {"input": [{}] * 500}),
    "2,000 items": (RESPONSES, {"input": [{}] * 2000}),
    "10,000 items": (RESPONSES, {"input": [{}] * 10_000}),
    "10,000 parts": (RESPONSES, {"input": [{"role": "user", "content": [{}] * 10_000}]}),
    "10,000 tools": (RESPONSES, {"input": "x", "tools": [{}] * 10_000}),
    "a wrong item behind 800": (RESPONSES, {"input": [MESSAGE] * 800 + [{}]}),
    "10,000 messages": (CHAT, {"messages": [{}] * 10_000}),
    "chat's parts": (CHAT, {"messages": [{"role": "user", "content": [{"type": 1}] * 10_000}]}),
    "conversations": ("/v1/chat/completions/batch", {"messages": [[{}] * 9900] * 3}),
    "15 x 60,000 floats": (COMPLETIONS, {"prompt": [[1.5] * 60_000] * 15}),
    "300 wrong invocations": ("/invocations", {"input": [{}] * 300}),
    "Anthropic's messages": ("/v1/messages", {"max_tokens": 1, "messages": [{}] * 10_000}),
}
TOO_SLOW: dict[str, tuple[str, dict[str, Any]]] = {
    "100,000 answers": (RESPONSES, {"input": [{**ANSWER, "content": [ANSWER_PART] * 100_000}]}),
    "300,000 parts": (RESPONSES, {"input": [{"role": "user", "content": [PART] * 300_000}]}),
}
FINE: dict[str, tuple[str, dict[str, Any]]] = {
    "400 messages": (CHAT, {"messages": [MESSAGE] * 400, "max_tokens": 1}),
    "400 items": (RESPONSES, {"input": [MESSAGE] * 400, "max_output_tokens": 1}),
    "40 tools": (
        CHAT,
        {
            "messages": [MESSAGE],
            "max_tokens": 1,
            "tool_choice": "none",
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": f"f{i}",
                        "parameters": {
                            "type": "object",
                            "properties": {f"p{j}": {"type": "string"} for j in range(20)},
                        },
                    },
                }
                for i in range(40)
            ],
        },
    ),
    "2,000 tokens": (COMPLETIONS, {"prompt": [100] * 2000, "max_tokens": 1}),
    "three prompts": (COMPLETIONS, {"prompt": [[100] * 900] * 3, "max_tokens": 1}),
}


class Peak:
    """How far the process's memory has grown since."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        self._before = self._high()

    @property
    def growth(self) -> int:
        """Bytes."""
        return self._high() - self._before

    @staticmethod
    def _high() -> int:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        assert found
        return int(found[1]) << 10


async def ask(engine: Engine, path: str, fields: dict[str, Any]) -> Reply:
    body = json.dumps({"model": MODEL, **fields}).encode()
    return await call(engine, "POST", path, body, {"content-length": str(len(body))})


def refusal(reply: Reply) -> str:
    """The text of an error in OpenAI's shape."""
    assert reply.status == 400, reply.body[:500]
    error = reply.json()["error"]
    assert {"message", "type", "param", "code"} <= error.keys()
    assert len(reply.body) < 20_000
    return str(error["message"])


@pytest.mark.parametrize("name", WRONG)
async def test_wrong_bodies_have_few_errors_and_take_little_memory(
    vllm_engine: Engine, name: str
) -> None:
    peak = Peak()
    text = refusal(await ask(vllm_engine, *WRONG[name]))
    assert peak.growth < MOST_BYTES
    counted = re.match(r"(\d+) validation error", text)
    assert counted is None or int(counted[1]) < MOST_ERRORS, text


@pytest.mark.parametrize("name", TOO_SLOW)
async def test_right_bodies_that_take_too_long_to_read(vllm_engine: Engine, name: str) -> None:
    assert "takes more than 0.3 s to read" in refusal(await ask(vllm_engine, *TOO_SLOW[name]))


@pytest.mark.parametrize("name", FINE)
async def test_large_right_bodies_are_answered(vllm_engine: Engine, name: str) -> None:
    reply = await ask(vllm_engine, *FINE[name])
    assert reply.status == 200, reply.body[:500]


async def test_a_job_that_may_have_ended_a_worker_is_read_elsewhere_first(
    vllm_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker, asked = vllm_engine._guards._bodies, []  # type: ignore[attr-defined]
    check = checker.check

    async def record(path: str, body: bytes, tenant: str) -> tuple[int, str]:
        asked.append((path, tenant))
        status, text = await check(path, body, tenant)
        return status, text

    monkeypatch.setattr(checker, "check", record)
    fields = {"messages": [MESSAGE] * 20, "max_tokens": 1}
    assert (await ask(vllm_engine, CHAT, fields)).status == 200
    assert asked == [], "it is small"
    JOB.set(JobFacts("team", suspicious=True))
    assert (await ask(vllm_engine, CHAT, fields)).status == 200
    assert asked == [(CHAT, "team")]


TOP = {"logprobs": True, "top_logprobs": 20, "ignore_eos": True}


@pytest.mark.parametrize("n", [1, 4])
async def test_log_probabilities_of_an_answer_in_one_piece_are_counted(
    vllm_engine: Engine, n: int
) -> None:
    """Its request does not say how many they become."""
    fields = {"messages": [MESSAGE], "n": n, **TOP}
    JOURNAL.set(Mock(past=lambda call: None))
    reply = await ask(vllm_engine, CHAT, {**fields, "max_tokens": 300 // n})
    assert reply.status == 200, reply.body[:500]
    JOURNAL.set(Mock(past=lambda call: None))
    assert "more than 6500 log probabilities" in refusal(await ask(vllm_engine, CHAT, fields))
    JOURNAL.set(Mock(past=lambda call: None))
    reply = await ask(vllm_engine, CHAT, {**fields, "max_tokens": 700, "stream": True})
    assert reply.status == 200, "of a stream they are not"


async def test_conversations_of_one_body_are_counted_together(vllm_engine: Engine) -> None:
    JOURNAL.set(Mock(past=lambda call: None))
    fields = {"messages": [[MESSAGE]] * 3, "max_tokens": 150, **TOP}
    path = "/v1/chat/completions/batch"
    assert "more than 6500 log probabilities" in refusal(await ask(vllm_engine, path, fields))

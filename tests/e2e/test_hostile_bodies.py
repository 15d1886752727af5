"""Bodies that are made to keep vLLM's validation busy, at the engine's own checks."""

from __future__ import annotations

import json
import re
from typing import Any
from unittest.mock import Mock

import pytest

from tests.harness.asgi_client import Reply, call
from tests.harness.models import DEMO
from tests.vllm.hostile_requests import CHAT, MANY_ERRORS, MESSAGE, TOO_SLOW
from worker.engines.interface import JOB, JOURNAL, Engine, JobFacts

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

MOST_ERRORS = 500


async def ask(engine: Engine, path: str, fields: dict[str, Any]) -> Reply:
    body = json.dumps({"model": DEMO, **fields}).encode()
    return await call(engine, "POST", path, body, {"content-length": str(len(body))})


def refusal(reply: Reply) -> str:
    """The text of an error in OpenAI's shape."""
    assert reply.status == 400, reply.body[:500]
    error = reply.json()["error"]
    assert {"message", "type", "param", "code"} <= error.keys()
    assert len(reply.body) < 20_000
    return str(error["message"])


@pytest.mark.parametrize("name", MANY_ERRORS)
async def test_wrong_bodies_have_few_errors(vllm_engine: Engine, name: str) -> None:
    text = refusal(await ask(vllm_engine, *MANY_ERRORS[name]))
    counted = re.match(r"(\d+) validation error", text)
    assert counted is None or int(counted[1]) < MOST_ERRORS, text


@pytest.mark.parametrize("name", TOO_SLOW)
async def test_right_bodies_that_take_too_long_to_read(vllm_engine: Engine, name: str) -> None:
    assert "takes more than 0.3 s to read" in refusal(await ask(vllm_engine, *TOO_SLOW[name]))


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


async def test_conversations_of_one_body_are_counted_together(vllm_engine: Engine) -> None:
    JOURNAL.set(Mock(past=lambda call: None))
    top = {"logprobs": True, "top_logprobs": 20, "ignore_eos": True}
    fields = {"messages": [[MESSAGE]] * 3, "max_tokens": 150, **top}
    path = "/v1/chat/completions/batch"
    assert "more than 6500 log probabilities" in refusal(await ask(vllm_engine, path, fields))

"""Anthropic's messages on real vLLM are continued after any token.

The engine is in this process, started once per run.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from tests.e2e.continuation_classes import LogRecorder, run
from tests.harness.asgi_client import Reply
from tests.harness.models import DEMO
from tests.vllm.test_messages import BODIES, PATH
from worker.core.resume import SentChunks
from worker.engines.interface import Engine

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.vllm]


def events(reply: Reply) -> list[bytes]:
    """The events of a stream, each with its empty line."""
    return [event + b"\n\n" for event in reply.body.split(b"\n\n") if event]


def normal(body: bytes) -> bytes:
    """Without ids, which are random or the job's."""
    return re.sub(rb'"id":"[^"]*"', b'"id":""', body)


def joined(body: bytes) -> bytes:
    """An answer without ids and comments. The texts of deltas follow each other: vLLM may merge
    those for which its reader is late."""
    if body.startswith(b"{"):
        return normal(body)
    found: list[bytes] = []
    for event in normal(body).split(b"\n\n"):
        if event.startswith(b"event: "):
            delta = json.loads(event[event.index(b"data: ") + 6 :]).get("delta") or {}
            part = delta.get("text") or delta.get("partial_json")
            found.append(part.encode() if part else event)
    return b"".join(found)


def tokens(log: list[Any]) -> list[int]:
    return [token for _, delta in log for token in delta.token_ids]


async def answer(
    engine: Engine, body: dict[str, Any], past: Any = None
) -> tuple[Reply, LogRecorder]:
    journal = LogRecorder(past)
    reply = await asyncio.create_task(run(engine, PATH, body, journal))
    assert reply.status == 200, reply.body
    return reply, journal


@pytest.mark.parametrize("name", BODIES)
async def test_an_answer_is_continued_after_any_token(name: str, vllm_engine: Engine) -> None:
    body = {**BODIES[name], "model": DEMO}
    whole, journal = await answer(vllm_engine, body)
    n = len(journal.log)
    assert n > 5
    for k in {1, 2, n // 3, n // 2, n - 1, n}:
        again, new = await answer(vllm_engine, body, journal.cut(k))
        assert not new.refused
        assert tokens(journal.log[:k] + new.log) == tokens(journal.log)
        assert joined(again.body) == joined(whole.body)
        if not body.get("stream"):
            continue
        n_sent = journal.chunks_before[k] if k < n else journal.chunks
        sent = SentChunks(events(whole)[:n_sent])
        unsent = [event for event in events(again) if sent.unsent(event) is not None]
        sent.check_all_made()
        assert joined(b"".join(unsent)) == joined(b"".join(events(whole)[n_sent:]))

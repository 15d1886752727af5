"""The answer to a response in the background: its reader is closed once, whatever happens."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.apis.responses import response_step
from gateway.apis.responses.response_step import ResponseStep
from shared.job.job import NewJob

JOB = NewJob(
    id=f"job_{1:027x}",
    tenant="t",
    pool="p",
    lane="default",
    model="m",
    endpoint="/v1/responses",
    body=b"{}",
    stream=False,
    ttl_s=1.0,
)


class Relay:
    """Has one reader, which can be closed once."""

    def __init__(self) -> None:
        self.readers: set[Any] = {self}

    def close(self, reader: Any) -> None:
        self.readers.remove(reader)


async def answer(relay: Relay, queued: asyncio.Future[str | None]) -> object:
    gateway, unused = SimpleNamespace(relay=relay), None
    incoming = SimpleNamespace(received=None, request_id=b"")
    step = ResponseStep(gateway, unused)  # type: ignore[arg-type]
    return await step.background_answer(JOB, queued, relay, incoming)  # type: ignore[arg-type]


async def queued_job() -> str | None:
    return None


async def test_an_answer_needs_no_reader() -> None:
    relay = Relay()
    await answer(relay, asyncio.ensure_future(queued_job()))
    assert not relay.readers


async def test_an_answer_that_can_not_be_made_raises_its_own_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> dict[str, Any]:
        raise UnicodeEncodeError("utf-8", "", 0, 1, "a lone surrogate")

    monkeypatch.setattr(response_step, "unfinished", fail)
    relay = Relay()
    with pytest.raises(UnicodeEncodeError):
        await answer(relay, asyncio.ensure_future(queued_job()))
    assert not relay.readers


async def test_a_request_that_is_cancelled_while_its_job_is_queued_keeps_no_reader() -> None:
    relay = Relay()
    answering = asyncio.create_task(answer(relay, asyncio.get_running_loop().create_future()))
    await asyncio.sleep(0)
    answering.cancel()
    await asyncio.wait({answering})
    assert answering.cancelled()
    assert not relay.readers

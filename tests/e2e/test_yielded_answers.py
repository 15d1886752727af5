"""Real vLLM: a flex job that makes room for other jobs has the answer of an undisturbed one.

Each class of requests that is continued exactly runs as a flex job in the only slot, and jobs of
the default lane come while it runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.e2e.continuation_classes import (
    CLASSES,
    COMPLETIONS,
    GREEDY,
    LONG,
    RequestClass,
    same,
    summary,
)
from tests.harness.asgi_client import Reply
from tests.harness.servers import RedisServer
from tests.harness.vllm_fleet import vllm_fleet
from tests.harness.waiting import eventually
from worker.demo import MODEL_NAME
from worker.engines.interface import Engine

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.vllm]

URGENT = {"prompt": "now", "max_tokens": 2}
LONGER = {"max_tokens": 100}
"""For those of LONG, which would end before another job comes."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def api(
    vllm_engine: Engine, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[httpx.AsyncClient]:
    """The gateway of a fleet with one slot."""
    folder = tmp_path_factory.mktemp("yields")
    async with (
        vllm_fleet(vllm_engine, redis_server, folder, slots=1) as gateway,
        httpx.AsyncClient(base_url=gateway.url, timeout=120) as client,
    ):
        yield client


async def submit(api: httpx.AsyncClient, path: str, body: dict[str, Any], lane: str) -> str:
    wanted = {"endpoint": path, "body": {"model": MODEL_NAME, **body}, "lane": lane}
    reply = await api.post("/jobs", json=wanted)
    assert reply.status_code == 202, reply.text
    job_id: str = reply.json()["id"]
    return job_id


async def shown(api: httpx.AsyncClient, job_id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await api.get(f"/jobs/{job_id}")).json()
    return found


async def answer(api: httpx.AsyncClient, job_id: str) -> Reply:
    """The answer of a job that has been submitted."""

    async def ended() -> bool:
        return bool((await shown(api, job_id))["state"] == "completed")

    await eventually(ended, "it is answered", 120)
    reply = await api.get(f"/jobs/{job_id}/result")
    content = reply.content.replace(job_id.encode(), b"JOB")
    return Reply(reply.status_code, dict(reply.headers), [content])


async def yielded(api: httpx.AsyncClient, wanted: RequestClass) -> tuple[Reply, int]:
    """The answer of a flex job that others interrupt, and how often they did."""
    job_id = await submit(api, wanted.path, wanted.body, "flex")
    for _ in range(2):

        async def runs() -> bool:
            return (await shown(api, job_id))["state"] != "queued"

        await eventually(runs, "it runs")
        await answer(api, await submit(api, COMPLETIONS, {**URGENT, **GREEDY}, "default"))
    reply = await answer(api, job_id)
    attempts = (await shown(api, job_id))["attempts"]
    return reply, sum(each["outcome"] == "handed_back" for each in attempts)


async def test_answers_of_every_class_are_those_of_undisturbed_jobs(api: httpx.AsyncClient) -> None:
    yields = dict[str, int]()
    for each in CLASSES:
        if each.reasons or each.seam_stop or not each.exact:
            continue
        body = each.body | (LONGER if each.body.items() >= LONG.items() else {})
        wanted = RequestClass(each.name, each.path, body)
        undisturbed = await answer(api, await submit(api, each.path, body, "default"))
        reply, yields[each.name] = await yielded(api, wanted)
        assert same(summary(reply), summary(undisturbed)), each.name
    assert sum(count > 0 for count in yields.values()) > len(yields) / 2, yields

"""What a token costs Redis: one script call and one PUBLISH per engine step, not one per token."""

from __future__ import annotations

import asyncio

import httpx
import pytest
import redis
from openai import AsyncOpenAI

from tests.harness.fleet import Stack

STREAMS, TOKENS = 64, 60


async def read(client: AsyncOpenAI, number: int) -> int:
    stream = await client.chat.completions.create(
        model="simulated",
        messages=[{"role": "user", "content": f"stream {number}"}],
        max_tokens=TOKENS,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    return len([chunk async for chunk in stream])


def calls(client: redis.Redis, command: str) -> int:
    stats = client.info("commandstats").get(f"cmdstat_{command}", {})
    return int(stats.get("calls", 0))


@pytest.mark.parametrize("gateways", [1, 2])
async def test_one_publish_per_step_and_gateway(stack: Stack, gateways: int) -> None:
    worker = stack.worker(sim_step_ms=20, sim_step_us_per_seq=0)
    urls = [stack.gateway().url for _ in range(gateways)]
    limits = httpx.Limits(max_connections=None)
    clients = [
        AsyncOpenAI(
            base_url=f"{url}/v1",
            api_key="any",
            http_client=httpx.AsyncClient(limits=limits, timeout=60),
        )
        for url in urls
    ]
    with redis.Redis.from_url(stack.redis_url) as client:
        before = calls(client, "publish")
        steps_before = worker.metric("flotilla_engine_steps_total")
        chunks = await asyncio.gather(
            *(read(clients[number % gateways], number) for number in range(STREAMS))
        )
        published = calls(client, "publish") - before
    steps = worker.metric("flotilla_engine_steps_total") - steps_before
    for each in clients:
        await each.close()
    assert all(n > TOKENS for n in chunks)
    tokens = STREAMS * TOKENS
    # A job that is handed over is published as well; a late client adds a few steps.
    assert published <= gateways * steps + 2 * STREAMS
    assert published < tokens / 8

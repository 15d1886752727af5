"""All connections to Redis are cut at once, several times, while streams run: they go on."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field

import httpx

from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisServer

CUTS = 8
BETWEEN_S = 1.0
STREAMS = 6
SHORT, LONG = 20, 500  # tokens, of 20 ms each
MANY = httpx.Limits(max_connections=CUTS * STREAMS * 2)
LONGEST_S = 2.5
"""On a calm machine 0.3 to 0.6 s for a call that begins in a cut, 0.2 s for a stream that runs."""


@dataclass
class Seen:
    """What all clients saw."""

    whole: int = 0
    wrong: list[str] = field(default_factory=list)
    first_s: float = 0.0
    """The longest wait for an answer's first chunk."""
    silence_s: float = 0.0
    """The longest wait for another chunk."""


async def follow(api: httpx.AsyncClient, tokens: int, seen: Seen) -> None:
    """One streamed answer, complete and in order."""
    body = {
        "model": "simulated",
        "messages": [{"role": "user", "content": f"{tokens} words"}],
        "stream": True,
        "max_tokens": tokens,
        "ignore_eos": True,
    }
    lines, last = [], time.monotonic()
    async with api.stream("POST", "/v1/chat/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if not line.startswith("data: "):
                continue
            now = time.monotonic()
            if lines:
                seen.silence_s = max(seen.silence_s, now - last)
            else:
                seen.first_s = max(seen.first_s, now - last)
            last = now
            lines.append(line.removeprefix("data: "))
    if answer.status_code == 200 and lines[-1:] == ["[DONE]"]:
        chunks = [json.loads(line)["choices"][0]["delta"].get("content") for line in lines[:-1]]
        if len([chunk for chunk in chunks if chunk]) == tokens:
            seen.whole += 1
            return
    seen.wrong.append(f"{answer.status_code}, {len(lines)} lines, {lines[-1:]}")


async def test_streams_go_on_when_all_connections_to_redis_are_cut(
    stack: Stack, redis_server: RedisServer
) -> None:
    gateway = stack.gateway(lease_s=15)
    for _ in range(2):
        stack.worker(sim_step_ms=20, sim_step_us_per_seq=0, lease_s=15)
    long, short = await cut_under_streams(gateway, redis_server)
    for name, seen in (("long", long), ("short", short)):
        print(
            f"{name}: first {seen.first_s:.2f} s, then {seen.silence_s:.2f} s, {seen.whole} whole"
        )
    assert long.wrong == short.wrong == []
    assert (long.whole, short.whole) == (STREAMS, CUTS * STREAMS)
    assert max(long.first_s, long.silence_s, short.first_s, short.silence_s) < LONGEST_S


async def cut_under_streams(gateway: Process, server: RedisServer) -> tuple[Seen, Seen]:
    """Of answers that run through all cuts, and of such that are asked for in the cuts."""
    long, short = Seen(), Seen()
    async with httpx.AsyncClient(base_url=gateway.url, timeout=60, limits=MANY) as api:
        asking = [asyncio.create_task(follow(api, LONG, long)) for _ in range(STREAMS)]
        with server.client() as redis:
            for _ in range(CUTS):
                await asyncio.sleep(BETWEEN_S)
                redis.client_kill_filter(_type="normal", skipme=True)
                redis.client_kill_filter(_type="pubsub")
                asking += [asyncio.create_task(follow(api, SHORT, short)) for _ in range(STREAMS)]
        await asyncio.gather(*asking)
    return long, short

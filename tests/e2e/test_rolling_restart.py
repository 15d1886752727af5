"""Three workers are replaced one after the other while clients stream: nothing fails, nothing is
cut, and no stream pauses for long."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.harness.fleet import Process, Stack
from tests.harness.waiting import eventually, wait_for

WORKERS = 3
STREAMS = 12
TOKENS = 150  # of 20 ms each: a stream takes three seconds, a restart less
ENGINE = {"sim_step_ms": 20, "sim_step_us_per_seq": 0, "sim_max_num_seqs": 64, "lease_s": 15}
DEADLINE_S = 120.0
LONGEST_S = 10.0
"""Of a worker with jobs, from SIGTERM to its end, on a loaded machine; 0.3 s on a calm one."""
PAUSE_S = 5.0
"""Of a stream, on a loaded machine; 0.1 s on a calm one."""


@dataclass
class Seen:
    """What all clients saw."""

    whole: int = 0
    wrong: list[str] = field(default_factory=list)
    pauses_s: list[float] = field(default_factory=list)
    """The longest one of each answer."""


def body(prompt: str) -> dict[str, Any]:
    return {
        "model": "simulated",
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": TOKENS,
        "ignore_eos": True,
    }


async def answer(api: httpx.AsyncClient, prompt: str) -> tuple[str, float]:
    """A streamed answer's text ('' if it is not whole), and its longest pause."""
    chunks, pause_s, last = [], 0.0, time.monotonic()
    async with api.stream("POST", "/v1/chat/completions", json=body(prompt)) as reply:
        async for line in reply.aiter_lines():
            if not line.startswith("data: "):
                continue
            now = time.monotonic()
            pause_s, last = max(pause_s, now - last), now
            chunks.append(line.removeprefix("data: "))
    if reply.status_code != 200 or chunks[-1:] != ["[DONE]"]:
        return "", pause_s
    parsed = [json.loads(chunk) for chunk in chunks[:-1]]
    if parsed[-1]["usage"]["completion_tokens"] != TOKENS:
        return "", pause_s
    deltas = [choice["delta"].get("content") for chunk in parsed for choice in chunk["choices"]]
    return "".join(text for text in deltas if text), pause_s


async def keep_asking(
    api: httpx.AsyncClient, prompt: str, expected: str, seen: Seen, stop: asyncio.Event
) -> None:
    while not stop.is_set():
        text, pause_s = await answer(api, prompt)
        seen.pauses_s.append(pause_s)
        if text == expected:
            seen.whole += 1
        else:
            seen.wrong.append(f"{prompt}: {len(text)} of {len(expected)} characters")


async def replace(stack: Stack, old: Process) -> tuple[Process, float]:
    """Start a successor, then stop a worker; returns how long that took to end."""
    new = stack.worker(wait=False, **ENGINE)

    async def check() -> bool:
        return await asyncio.to_thread(new.ready)

    async def ended() -> bool:
        return old.popen.poll() is not None

    await eventually(check, "the successor is ready")
    stopped = time.monotonic()
    old.terminate()
    await eventually(ended, "the old worker ends")
    return new, time.monotonic() - stopped


async def test_a_rolling_restart_is_seen_by_no_client(stack: Stack) -> None:
    gateway = stack.gateway(lease_s=15)
    workers = [stack.worker(wait=False, **ENGINE) for _ in range(WORKERS)]
    wait_for(lambda: all(worker.ready() for worker in workers), "all are ready")
    seen, stop, took = Seen(), asyncio.Event(), []
    limits = httpx.Limits(max_connections=2 * STREAMS)
    async with (
        asyncio.timeout(DEADLINE_S),
        httpx.AsyncClient(base_url=gateway.url, timeout=DEADLINE_S, limits=limits) as api,
    ):
        prompts = [f"story {n}" for n in range(STREAMS)]
        expected = [text for text, _ in await asyncio.gather(*(answer(api, p) for p in prompts))]
        assert all(expected)
        clients = [
            asyncio.create_task(keep_asking(api, prompt, text, seen, stop))
            for prompt, text in zip(prompts, expected, strict=True)
        ]
        for worker in workers:
            await asyncio.sleep(0.5)
            successor, seconds = await replace(stack, worker)
            took.append(seconds)
            assert worker.popen.returncode == 0, worker.log.read_text()[-2000:]
            successor.check()
        stop.set()
        await asyncio.gather(*clients)
    seen.pauses_s.sort()
    n_moved = sum("(handed_over)" in line for each in workers for line in _lines(each))
    print(
        f"{seen.whole} streams, {n_moved} jobs moved; longest pause of a stream: "
        f"p50 {seen.pauses_s[len(seen.pauses_s) // 2]:.3f} s, max {seen.pauses_s[-1]:.3f} s; "
        f"workers ended after {', '.join(f'{seconds:.2f}' for seconds in took)} s"
    )
    assert seen.wrong == []
    assert n_moved > 0
    assert max(took) < LONGEST_S
    assert seen.pauses_s[-1] < PAUSE_S


def _lines(worker: Process) -> list[str]:
    return worker.log.read_text().splitlines()

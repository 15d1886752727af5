"""A worker whose model does not load in time."""

from __future__ import annotations

import asyncio
import threading

import pytest

from worker.core.start_limit import StartTimeout, start_limit


async def test_a_start_in_time_passes() -> None:
    with start_limit(60) as limit:
        await limit.wait(asyncio.sleep(0))


async def test_a_start_that_takes_too_long_is_cancelled() -> None:
    with start_limit(0.01) as limit, pytest.raises(StartTimeout, match=r"within 0\.01 s"):
        await limit.wait(asyncio.sleep(60))


async def test_what_the_start_raises_is_passed_on() -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise TimeoutError("a library's own")

    with start_limit(60) as limit, pytest.raises(TimeoutError, match="a library's own"):
        await limit.wait(fail())


async def test_a_blocked_event_loop_ends_the_process() -> None:
    ended = threading.Event()

    async def block() -> None:
        ended.wait(30)

    with start_limit(0.01, ended.set, margin_s=0.05) as limit:
        await limit.wait(block())
    assert ended.is_set()


async def test_an_endless_limit_is_possible() -> None:
    with start_limit(1e12) as limit:
        await limit.wait(asyncio.sleep(0))

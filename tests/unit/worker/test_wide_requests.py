"""Room in the engine for requests of several sequences."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from worker.engines.vllm.wide_requests import Room, WideEngine


@pytest.mark.parametrize(("slots", "size"), [(1, 1), (2, 1), (8, 7), (64, 56), (256, 224)])
def test_some_slots_are_kept_for_others(slots: int, size: int) -> None:
    assert Room(slots).size == size


async def test_first_come_first_served() -> None:
    room, entered = Room(8), list[str]()

    async def enter(name: str, sequences: int) -> int:
        taken = await room.enter(sequences)
        entered.append(name)
        return taken

    assert await enter("a", 5) == 5
    large = asyncio.create_task(enter("large", 100))
    small = asyncio.create_task(enter("small", 1))
    await asyncio.sleep(0)
    assert entered == ["a"]
    room.leave(5)
    assert await large == 7  # all there is
    await asyncio.sleep(0)
    assert entered == ["a", "large"]
    room.leave(7)
    assert await small == 1


async def test_a_cancelled_request_leaves_the_line() -> None:
    room = Room(8)
    taken = await room.enter(7)
    first = asyncio.create_task(room.enter(7))
    second = asyncio.create_task(room.enter(2))
    await asyncio.sleep(0)
    first.cancel()
    room.leave(taken)
    assert await second == 2
    third = asyncio.create_task(room.enter(6))
    await asyncio.sleep(0)
    room.leave(2)  # its turn comes
    third.cancel()  # before it has noticed
    with pytest.raises(asyncio.CancelledError):
        await third
    assert await asyncio.wait_for(room.enter(7), 1) == 7


async def test_room_is_given_back_however_a_call_ends() -> None:
    class Engine:
        async def generate(self, prompt: Any, params: Any, request_id: str) -> AsyncIterator[int]:
            yield 1
            if prompt == "fails":
                raise ValueError("x")
            yield 2

    wide = WideEngine(Engine(), 8)
    params = SimpleNamespace(n=4)
    for prompt in ("a", "b", "fails", "fails", "c"):
        calls = wide.generate(prompt, params, "id")
        assert await asyncio.wait_for(anext(calls), 1) == 1
        if prompt == "fails":
            with pytest.raises(ValueError):
                await anext(calls)
        elif prompt == "b":
            await calls.aclose()
        else:
            assert [each async for each in calls] == [2]
    assert await asyncio.wait_for(wide.room.enter(7), 1) == 7

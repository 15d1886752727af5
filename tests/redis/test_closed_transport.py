"""A call on a connection that was just lost raises the store's error, under uvloop too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from shared.store.interface import StoreUnavailable
from shared.store.redis.redis_client import connect
from shared.store.redis.store_errors import store_errors


@pytest.mark.parametrize("runner", [uvloop.run, asyncio.run])
def test_a_write_to_a_closed_connection(redis_url: str, runner: Callable[[Any], None]) -> None:
    async def ping(connection: Any) -> None:
        await connection.send_command("PING")
        await connection.read_response()

    async def call_on_a_lost_connection() -> None:
        client: Any = connect(redis_url)
        try:
            connection = await client.connection_pool.get_connection()
            connection._writer.transport.abort()
            await asyncio.sleep(0.05)  # the loop closes the socket
            with pytest.raises(StoreUnavailable), store_errors():
                await ping(connection)
            await client.connection_pool.release(connection)
            assert await client.ping(), "the next call connects again"
        finally:
            await client.aclose()

    runner(call_on_a_lost_connection())

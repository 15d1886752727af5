"""How many connections there may be, beside those to Redis."""

from __future__ import annotations

import pytest

from gateway.http.connection_limits import most_connections


@pytest.mark.parametrize(
    ("descriptors", "redis_servers", "most"),
    [(256, 1, 184), (1024, 1, 952), (1024, 4, 928), (100, 1, 50), (1 << 20, 1, (1 << 20) - 72)],
)
def test_descriptors_are_reserved_for_redis(
    descriptors: int, redis_servers: int, most: int
) -> None:
    assert most_connections(descriptors, redis_servers) == most

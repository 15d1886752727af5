"""What a process checks of its Redis before it starts."""

from __future__ import annotations

from shared.fleet.fleet_settings import FleetSettings
from shared.platform.settings import SettingsError
from shared.store.redis.durability import refuse_volatile
from shared.store.redis.eviction import refuse_evicting
from shared.store.redis.format_version import check_format
from shared.store.redis.servers import Servers


async def refuse_unfit(settings: FleetSettings) -> None:
    """Raise SettingsError if the fleet's Redis evicts keys, is not durable although it has to be,
    or holds data of another format. One without data is marked with this release's format.

    A server that is away passes; the monitors of running processes check it later.
    """
    try:
        servers = Servers(settings.redis_url, settings.shards, max_connections=1)
    except ValueError as error:
        raise SettingsError(f"FLOTILLA_REDIS_URL: {error}") from None
    async with servers:
        for redis in servers.all:
            await refuse_evicting(redis)
            if settings.durable:
                await refuse_volatile(redis)
        await check_format(servers.primary, settings.shards)

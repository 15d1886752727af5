"""The commands of channels: of one Redis, and of a cluster, where a channel lies in a slot."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from shared.store.redis import keys


class ChannelCommands(NamedTuple):
    """Names of commands, and of subcommands of PUBSUB."""

    subscribe: str
    unsubscribe: str
    publish: str
    numsub: str
    channels: str


_ONE_REDIS = ChannelCommands("SUBSCRIBE", "UNSUBSCRIBE", "PUBLISH", "NUMSUB", "CHANNELS")
_CLUSTER = ChannelCommands("SSUBSCRIBE", "SUNSUBSCRIBE", "SPUBLISH", "SHARDNUMSUB", "SHARDCHANNELS")


def channel_commands() -> ChannelCommands:
    """Those of this fleet's Redis."""
    return _CLUSTER if keys.sharded() else _ONE_REDIS


async def with_subscribers(redis: Any, shard: int, channels: Collection[str]) -> set[str]:
    """Those of the channels that have subscribers at the shard. Raises StoreError."""
    if not channels:
        return set()
    names = [keys.channel_at(shard, channel) for channel in channels]
    # A flat list: name, number of subscribers, ...
    reply = await redis.execute_command("PUBSUB", channel_commands().numsub, *names)
    return {channel for channel, n in zip(channels, reply[1::2], strict=True) if n}

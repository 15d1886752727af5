"""The names of keys and channels in Redis. PROTOCOL.md lists them, with what each one has.

`{s}` is the shard, a Redis Cluster hash tag: all keys of a job lie in one slot, and a script that
gets the shard's base key makes the others itself. On a cluster another tag stands for the shard
(`use_tags`), and its channels lie in its slot, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

GROUP: Final = "workers"
"""The consumer group of a pool's stream."""
KEPT_ACCEPTED: Final = " "
"""Of the ledger `kept`, beside the tenants: all bytes that were ever accepted."""
API_KEYS_CHANNEL: Final = "flotilla:api_keys"
_CHANNELS: Final = "flotilla:"

_tags: list[str] = []
"""Of a cluster: the tag of each shard. A process belongs to one fleet."""


def use_tags(tags: Sequence[str]) -> None:
    """Set the hash tags of the shards; empty: the fleet is on one Redis, their numbers are tags."""
    if list(tags) != _tags:
        _tags[:] = tags
        base.cache_clear()


def sharded() -> bool:
    """Whether the channels lie in the slots of the shards."""
    return bool(_tags)


@lru_cache(maxsize=4096)
def base(shard: int) -> str:
    """What every key of a shard starts with. A number that no shard has finds none of its keys."""
    return f"flotilla:{{{_tags[shard % len(_tags)] if _tags else shard}}}:"


def of(word: str, shard: int, *rest: str) -> str:
    """A key of a shard; `rest`: what it is about, as its id, or its pool and lane."""
    return ":".join((base(shard) + word, *rest))


def job(shard: int, job_id: str) -> str:
    """A job's record."""
    return f"{base(shard)}job:{job_id}"


def log(shard: int, job_id: str) -> str:
    """A job's log."""
    return f"{base(shard)}log:{job_id}"


def first(word: str, *rest: str) -> str:
    """A key of what lies in the first shard: documents, batches, webhooks, sums of use, limits."""
    return of(word, 0, *rest)


def fleet(word: str, *rest: str) -> str:
    """A key of what belongs to no shard."""
    return ":".join(("flotilla:{fleet}:" + word, *rest))


def tokens_channel(gateway_id: str) -> str:
    """The channel of one gateway process."""
    return f"{_CHANNELS}tokens:{gateway_id}"


def control_channel(worker_id: str) -> str:
    """The control channel of one worker."""
    return f"{_CHANNELS}control:{worker_id}"


def channel_at(shard: int, channel: str) -> str:
    """What a channel is called at the shard: on a cluster it lies in the shard's slot."""
    return base(shard) + channel.removeprefix(_CHANNELS) if _tags else channel

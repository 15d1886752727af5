"""Every Redis key and channel that Python uses; the scripts make theirs of the same words.

`{s}` is the shard, a Redis Cluster hash tag: all keys of a job lie in one slot, and a script that
gets the shard's base key makes the others itself. On a cluster another tag stands for the shard
(`use_tags`), and its channels lie in its slot, too.
PROTOCOL.md lists them, with what each one has.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

GROUP: Final = "workers"
"""The consumer group of a pool's stream."""

# The words of the shard's keys that Python uses. The scripts spell them, and others, themselves.
JOB: Final = "job"
LOG: Final = "log"
QUEUE: Final = "queue"
WAITING: Final = "waiting"
LINE: Final = "line"
TURNS: Final = "turns"
JOBS: Final = "jobs"
POOLS: Final = "pools"
UPKEEP: Final = "upkeep"
IDLE: Final = "idle"
BODY: Final = "body"
ALIVE: Final = "workers"
GIVEN_UP: Final = "given_up"
KEPT: Final = "kept"
CONVERSATIONS: Final = "conversations"
CONVERSATION: Final = "conversation"
CONVERSATION_ORDER: Final = "conversation_order"
CONVERSATION_ITEMS: Final = "conversation_items"
BATCH: Final = "batch"
BATCH_LINES: Final = "batch_lines"
BATCH_OUTPUT: Final = "batch_output"
BATCH_ERRORS: Final = "batch_errors"
BATCHES: Final = "batches"
OPEN_BATCHES: Final = "open_batches"
DOCUMENTS: Final = "documents"
DOCUMENT_INDEX: Final = "document_index"
DOCUMENT_BYTES: Final = "document_bytes"
DOCUMENT_EXPIRY: Final = "document_expiry"
DOCUMENT_VERSION: Final = "document_version"
GONE: Final = "gone"
WEBHOOK_COUNTS: Final = "webhook_counts"
DUE: Final = "due"
DELIVERIES: Final = "deliveries"
DELIVERY_RECORDS: Final = "delivery_records"
ENDED: Final = "ended"
ENDED_READ: Final = "ended_read"
ENDED_DROPPED: Final = "ended_dropped"
USAGE_DAY: Final = "usage_day"
USAGE_ROWS: Final = "usage_rows"
USAGE_TOTALS: Final = "usage_totals"
RUNNING: Final = "running"
TOKENS_CHANNEL: Final = "flotilla:tokens:"
CONTROL_CHANNEL: Final = "flotilla:control:"
API_KEYS_CHANNEL: Final = "flotilla:api_keys"
_CHANNELS: Final = "flotilla:"

_tags: list[str] = []
"""Of a cluster: the tag of each shard. A process belongs to one fleet."""
_shards: dict[str, int] = {}


def use_tags(tags: Sequence[str]) -> None:
    """Set the hash tags of the shards; empty: the fleet is on one Redis, their numbers are tags."""
    if list(tags) != _tags:
        _tags[:] = tags
        _shards.clear()
        _shards.update({tag: shard for shard, tag in enumerate(tags)})
        base.cache_clear()


def sharded() -> bool:
    """Whether the channels lie in the slots of the shards."""
    return bool(_tags)


@lru_cache(maxsize=4096)
def base(shard: int) -> str:
    """What every key of a shard starts with. A number that no shard has finds none of its keys."""
    return f"flotilla:{{{_tags[shard % len(_tags)] if _tags else shard}}}:"


def job(shard: int, job_id: str) -> str:
    """A job's record."""
    return f"{base(shard)}{JOB}:{job_id}"


def log(shard: int, job_id: str) -> str:
    """A job's log."""
    return f"{base(shard)}{LOG}:{job_id}"


def body(shard: int, job_id: str) -> str:
    """The large body of a job's request."""
    return f"{base(shard)}{BODY}:{job_id}"


def queue(shard: int, pool: str) -> str:
    """The stream of a pool's unfinished jobs."""
    return f"{base(shard)}{QUEUE}:{pool}"


def idle(shard: int, pool: str) -> str:
    """The pool's idle workers, by their room."""
    return f"{base(shard)}{IDLE}:{pool}"


def alive(shard: int) -> str:
    """The workers with a lease, by its end."""
    return f"{base(shard)}{ALIVE}"


def pools(shard: int) -> str:
    """The names of the pools that jobs were ever submitted to."""
    return f"{base(shard)}{POOLS}"


def upkeep(shard: int) -> str:
    """The lock of a round of upkeep."""
    return f"{base(shard)}{UPKEEP}"


def waiting(shard: int, pool: str, lane: str) -> str:
    """The ids of a lane's queued jobs."""
    return f"{base(shard)}{WAITING}:{pool}:{lane}"


def line(shard: int, pool: str, lane: str, tenant: str) -> str:
    """Those of one tenant, in the order in which they are claimed."""
    return f"{base(shard)}{LINE}:{pool}:{lane}:{tenant}"


def turns(shard: int, pool: str, lane: str) -> str:
    """The tenants whose jobs wait in a lane, by level."""
    return f"{base(shard)}{TURNS}:{pool}:{lane}"


def jobs(shard: int, tenant: str) -> str:
    """The index of a tenant's jobs."""
    return f"{base(shard)}{JOBS}:{tenant}"


def kept(shard: int) -> str:
    """The ledger: the bytes that each tenant's data take; under KEPT_ACCEPTED all ever accepted."""
    return f"{base(shard)}{KEPT}"


KEPT_ACCEPTED: Final = " "


def conversations(shard: int, tenant: str) -> str:
    """The index of a tenant's conversations."""
    return f"{base(shard)}{CONVERSATIONS}:{tenant}"


def conversation(shard: int, conversation_id: str) -> str:
    """A conversation of the Responses API, without its items."""
    return f"{base(shard)}{CONVERSATION}:{conversation_id}"


def conversation_order(shard: int, conversation_id: str) -> str:
    """The ids of a conversation's items, by their numbers."""
    return f"{base(shard)}{CONVERSATION_ORDER}:{conversation_id}"


def conversation_items(shard: int, conversation_id: str) -> str:
    """The items of a conversation, by id."""
    return f"{base(shard)}{CONVERSATION_ITEMS}:{conversation_id}"


def gone_item(shard: int, conversation_id: str, item_id: str) -> str:
    """Where an item was that was deleted lately."""
    return f"{base(shard)}{GONE}:{conversation_id}:{item_id}"


def first(word: str, rest: str = "") -> str:
    """A key of files, batches, webhooks, API keys or sums of use, which lie in the first shard: one
    of the words above, and an id or a tenant, if there is one of each."""
    return f"{base(0)}{word}:{rest}" if rest else f"{base(0)}{word}"


def ended(shard: int) -> str:
    """The stream of what has ended in a shard."""
    return f"{base(shard)}{ENDED}"


def ended_dropped(shard: int) -> str:
    """How many of its entries were dropped as there were too many."""
    return f"{base(shard)}{ENDED_DROPPED}"


def usage_totals(period: str) -> str:
    """Prompt and output tokens of a UTC day (`2026-11-28`) or month (`2026-11`), which budgets are
    compared with, by the names of limits (rate_limits.py)."""
    return first(USAGE_TOTALS, period)


_OF_SHARD: Final = re.compile(r"flotilla:\{(\d+)\}:(\w+):(.*)", re.DOTALL)


def parse(key: str) -> tuple[int, str, str] | None:
    """Shard, word and rest of a shard's key; None if it is another key."""
    match = _OF_SHARD.fullmatch(key)
    shard = match and (_shards.get(match[1]) if _tags else int(match[1]))
    return (shard, match[2], match[3]) if match and shard is not None else None


FORMAT: Final = "flotilla:{fleet}:format"
WORKERS: Final = "flotilla:{fleet}:workers"
MODELS: Final = "flotilla:{fleet}:models"
UNUSED_MODELS: Final = "flotilla:{fleet}:unused_models"
SHARDS: Final = "flotilla:{fleet}:shards"
PROBE: Final = "flotilla:{fleet}:probe"
MAINTENANCE_RUNS: Final = "flotilla:{fleet}:maintenance"
STORAGE: Final = "flotilla:{fleet}:storage"
AUDIT: Final = "flotilla:{fleet}:audit"


def worker(worker_id: str) -> str:
    """A worker's registry entry."""
    return f"flotilla:{{fleet}}:worker:{worker_id}"


def life(worker_id: str) -> str:
    """The reservation of a worker id by one process."""
    return f"flotilla:{{fleet}}:life:{worker_id}"


def operation(operation_id: str) -> str:
    """The workers' answers to an operator call."""
    return f"flotilla:{{fleet}}:operation:{operation_id}"


def maintenance_lock(name: str) -> str:
    """The lock of a maintenance task's round."""
    return f"flotilla:{{fleet}}:maintenance_lock:{name}"


def celery_prefix(fleet: str) -> str:
    """What the keys of a fleet's Celery messages start with."""
    return f"flotilla:celery:{fleet}:"


def tokens_channel(gateway_id: str) -> str:
    """The channel of one gateway process."""
    return TOKENS_CHANNEL + gateway_id


def control_channel(worker_id: str) -> str:
    """The control channel of one worker."""
    return CONTROL_CHANNEL + worker_id


def channel_at(shard: int, channel: str) -> str:
    """What a channel is called at the shard: on a cluster it lies in the shard's slot."""
    return base(shard) + channel.removeprefix(_CHANNELS) if _tags else channel

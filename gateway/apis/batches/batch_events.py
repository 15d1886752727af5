"""The progress of a batch as server-sent events: one `progress` each second, then its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from gateway.apis.batches.batch_object import BatchObject, counts
from gateway.core.context import Gateway
from gateway.http import server_events as sse
from shared.batches.batch import Batch
from shared.job.errors import NotFound, RedisUnavailable
from shared.store.interface import StoreError
from shared.store.redis.batch_records import BatchRecords

_INTERVAL_S = 1.0
_MAX_EVENTS = 3600
"""A response ends after so many; clients of server-sent events come back by themselves."""
_RATES_OVER = 11
"""Readings: rates are those of the last ten seconds, as lines are committed some at a time."""
_RETRY = b"retry: 1000\n"


class _Reading(NamedTuple):
    at: float
    lines: int
    tokens: int


class Rates:
    """Lines and tokens per second, of the last readings."""

    def __init__(self) -> None:
        self._readings: deque[_Reading] = deque(maxlen=_RATES_OVER)

    def add(self, batch: Batch, at: float) -> dict[str, Any]:
        """What an event tells of a batch as it is now; null: not known yet."""
        ended = batch.completed + batch.failed
        self._readings.append(_Reading(at, ended, batch.usage.output_tokens))
        first, last = self._readings[0], self._readings[-1]
        elapsed = last.at - first.at
        lines_per_s = (last.lines - first.lines) / elapsed if elapsed > 0 else None
        tokens_per_s = (last.tokens - first.tokens) / elapsed if elapsed > 0 else None
        left = batch.total - ended
        return {
            "lines_per_s": None if lines_per_s is None else round(lines_per_s, 2),
            "output_tokens_per_s": None if tokens_per_s is None else round(tokens_per_s, 2),
            "eta_s": round(left / lines_per_s, 1) if lines_per_s and batch.total else None,
        }


async def events(gateway: Gateway, batch: Batch) -> AsyncIterator[bytes]:
    """The events of a batch. The last has the name of its status, and the whole batch."""
    rates, head, loop = Rates(), _RETRY, asyncio.get_running_loop()
    found: Batch | None = batch
    try:
        for _ in range(_MAX_EVENTS):
            if found is None:
                raise NotFound("The batch is gone.")
            if found.status.ended:
                yield head + sse.event(found.status, BatchObject.of(found).model_dump(mode="json"))
                return
            shown = {
                "id": found.id,
                "status": found.status,
                "request_counts": counts(found).model_dump(),
                **rates.add(found, loop.time()),
            }
            yield head + sse.event("progress", shown)
            head = b""
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(gateway.stopping.wait(), _INTERVAL_S)
            if gateway.stopping.is_set():
                return
            found = await gateway.of(BatchRecords).get(batch.tenant, batch.id)
    except NotFound as error:
        yield sse.raw_event("error", error.to_openai())
    except StoreError:
        unavailable = RedisUnavailable("The batch can't be read now; try again.")
        yield sse.raw_event("error", unavailable.to_openai())

"""Stores an answer that is too long to be sent with the end of its job, before that end.

One call with all of it would hold up Redis and the worker, and the output of all other jobs.
"""

from __future__ import annotations

import asyncio
import logging

from shared.job.result import PIECE_BYTES, n_pieces
from shared.platform.backoff import Backoff
from shared.platform.logs import RareWarning
from shared.store.interface import TRANSIENT, Store
from worker.core.output_buffer import OutputBuffer

log = logging.getLogger("flotilla.publisher")
_warn = RareWarning(log)

_RETRY_BASE_S, _RETRY_CAP_S = 0.05, 1.0


async def store_pieces(queue: Store, buffer: OutputBuffer, body: bytes) -> None:
    """Store the pieces of the answer; returns early if the worker has lost the job.

    Tries again as long as Redis does not answer; raises its other errors.
    """
    job, backoff = buffer.job, Backoff(_RETRY_BASE_S, _RETRY_CAP_S)
    number = 0
    while number < n_pieces(len(body)) and not buffer.discarded:
        piece = body[number * PIECE_BYTES : (number + 1) * PIECE_BYTES]
        try:
            if not await queue.store_piece(job, number, piece):
                return  # the end of the job finds out why
        except TRANSIENT as error:
            _warn("answer not stored, trying again: %s", error, shard=job.shard)
            await asyncio.sleep(backoff.next_delay_s())
        else:
            backoff.reset()
            number += 1

"""How the choices of a request with several prompts are numbered: over all of its calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable

from shared.job.job_log import Delta, Prompt
from shared.store.interface import Store


class ChoiceNumbers:
    """The numbers of one job's choices. A call of the engine has `n` of them for one prompt."""

    def __init__(self, queue: Store, job_id: str) -> None:
        self._queue = queue
        self._job_id = job_id
        self._per_call: int | None = None  # read only if there is a second call

    async def prepare(self, records: Iterable[Delta | Prompt]) -> None:
        """Call it before `of` is called for these records. Raises StoreError."""
        if self._per_call is None and any(record.call for record in records):
            body, _ = await self._queue.stored_request(self._job_id)
            # Several prompts may be large, and parsing them would delay all streams.
            self._per_call = await asyncio.to_thread(_choices_per_call, body)

    def of(self, call: int, choice: int) -> int:
        """The choice's index in the answer."""
        return call * (self._per_call or 1) + choice


def _choices_per_call(body: bytes) -> int:
    if body.startswith(b"--"):  # a form: audio in several parts, one choice each
        return 1
    n = json.loads(body or b"{}").get("n")
    return n if isinstance(n, int) and n > 0 else 1

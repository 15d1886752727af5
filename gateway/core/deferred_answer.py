"""The answer to a call with the header `Prefer`: the job's own if it is complete in time, else 202.

Both have `Preference-Applied`. The job goes on after a 202; its answer is fetched by its id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.core.answer import JobAnswer
from gateway.core.incoming import Incoming
from gateway.core.reader import Reader
from gateway.core.stream_context import StreamContext
from gateway.core.whole_answer import WholeAnswer
from gateway.http.prefer import Prefer
from shared.job.errors import StreamReset
from shared.job.job import Job, NewJob


class DeferredAnswer(JobAnswer):
    """An ASGI application: follows a job for as long as its client prefers to wait.

    The reader must be one that ends with the job (`ReadMode.END`).
    """

    __slots__ = ("_prefer", "_until")

    def __init__(
        self,
        context: StreamContext,
        job: NewJob | Job,
        reader: Reader,
        incoming: Incoming,
        prefer: Prefer,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        """See JobAnswer. A streamed job is answered with 202 at once."""
        super().__init__(context, job, reader, incoming, headers=headers)
        self._prefer = prefer
        wait_s = 0 if self._streams else prefer.wait_s or 0
        self._until = asyncio.get_running_loop().time() + wait_s
        self._streams = False

    async def _answer_whole(self) -> bool:
        left_s = self._until - asyncio.get_running_loop().time()
        if left_s > 0:
            return await super()._answer_whole()
        return await self._answer_with_job()

    def _silence_s(self) -> float:
        left_s = self._until - asyncio.get_running_loop().time()
        return min(super()._silence_s(), max(0.0, left_s))

    async def _on_silence(self) -> bool:
        if asyncio.get_running_loop().time() < self._until:
            return await super()._on_silence()
        await self._answer_with_job()
        return True

    async def _send_whole(self, whole: WholeAnswer, *headers: tuple[bytes, bytes]) -> None:
        if whole.status != 202:
            headers = (*headers, *self._applied(in_time=True))
        await super()._send_whole(whole, *headers)

    async def _answer_with_job(self) -> bool:
        """Send 202 with the job; False: it has not ended, and goes on without this client."""
        if self._queued is not None:
            await self._queued
        job = await self._context.queue.get(self.job_id)
        if job is None:
            raise StreamReset("The queue has lost this job.")
        body, told = await self._context.job_object(job)
        await self._send_whole(
            WholeAnswer(202, "application/json", body),
            (b"location", f"/jobs/{self.job_id}".encode()),
            (b"retry-after", b"1"),
            *self._applied(in_time=False),
            *((name.encode(), value.encode()) for name, value in told.items()),
        )
        return False

    def _applied(self, *, in_time: bool) -> list[tuple[bytes, bytes]]:
        applied = self._prefer.applied(in_time=in_time)
        return [(b"preference-applied", applied)] if applied else []

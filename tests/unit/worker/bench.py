"""Runs jobs on an engine without Redis, for the tests of worker/core."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry

from shared.job.frames import DeltaDecoder
from shared.job.job import NO_ORIGIN, LeasedJob, Origin
from shared.job.job_log import Entry
from shared.job.replies import LogPart
from shared.job.result import JobResult
from shared.platform.metrics.worker import WorkerMetrics
from shared.store.redis.scripts.emit import Step, parse_emit
from tests.unit.steps import SentOutput, SentResult, parse_step
from worker.core.job_run import JobRun
from worker.core.lease import Lease
from worker.core.membership import Membership
from worker.core.publisher import Publisher

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hello"}]


@dataclass
class RecordingQueue:
    """Records what the publisher sends; `outcome` is what becomes of results."""

    outputs: list[SentOutput] = field(default_factory=list)
    outcome: str = "ok"
    shards: int = 1
    before: list[Entry] = field(default_factory=list)
    """The log of earlier attempts."""
    restarted: list[str] = field(default_factory=list)
    """The jobs that were given up because they can't be continued."""
    restart_codes: list[str] = field(default_factory=list)

    parse_emit = staticmethod(parse_emit)

    def losses(self, shard: int) -> int:
        return 0

    def start_emit(
        self, shard: int, worker: str, fence_token: str, step: Step, update: object
    ) -> asyncio.Future[list[bytes]]:
        outputs = parse_step(step).outputs
        self.outputs += outputs.values()
        ended = [name for name, output in outputs.items() if output.end]
        reply: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        lost = [] if self.outcome == "ok" else ended
        reply.set_result([word.encode() for name in lost for word in (name, self.outcome)])
        return reply

    async def read_log(self, job_id: str, after: int) -> LogPart:
        assert after == 0
        return LogPart(2 if self.before else 1, self.before)

    async def restart(self, job: LeasedJob, reason: str, code: str) -> str:
        self.restarted.append(job.id)
        self.restart_codes.append(code)
        return "failed" if job.stream or job.watched else "queued"

    @property
    def log(self) -> list[Entry]:
        """The entries that were written, without the final one."""
        entries = {each.entry.seq: each.entry for each in self.outputs if each.entry}
        entries |= {entry.seq: entry for end in self.ended for entry in end.before}
        first = len(self.before) + 1
        assert sorted(entries) == list(range(first, first + len(entries)))
        return [entry for _, entry in sorted(entries.items())]

    @property
    def sent(self) -> bytes:
        """The bytes of the whole stream, those of earlier attempts included."""
        decoder = DeltaDecoder()
        return b"".join([decoder.decode(entry.items) for entry in [*self.before, *self.log]])

    @property
    def ended(self) -> list[SentResult]:
        return [each.end for each in self.outputs if each.end]

    @property
    def answer(self) -> JobResult:
        (end,) = self.ended
        assert end is self.outputs[-1].end
        return end.answer


class Bench:
    """Runs jobs on an engine, with a publisher that sends to a recording queue.

    `before`: the log of earlier attempts at the job. `around`: a plug-in.
    """

    def __init__(self, engine: Any, before: Sequence[Entry] = (), around: Any = None) -> None:
        self.around = around
        self.queue = RecordingQueue(before=list(before))
        self.engine = engine
        self.metrics = WorkerMetrics(CollectorRegistry())
        queue: Any = self.queue
        lease = Lease(Membership(queue, "pool", "w-1", 9.0), list, lambda *lost: None)
        lease._fence_tokens = ["e-1"]
        self.publisher = Publisher(queue, self.metrics, lease)
        self.engine.on_step = self.publisher.on_step
        self.task = asyncio.create_task(self.publisher.run())

    def run(
        self,
        name: str = "job",
        *,
        endpoint: str = CHAT,
        generation: int = 0,
        attempt: int = 1,
        watched: bool = False,
        origin: Origin = NO_ORIGIN,
        **body: Any,
    ) -> JobRun:
        given: dict[str, Any] = {"messages": MESSAGES}
        if endpoint in ("/v1/completions", "/v1/responses"):
            given = {"prompt": "hello", "input": "hello"}
        raw = json.dumps(given | body).encode()
        stream = body.get("stream", False)
        job = LeasedJob(
            id=name,
            shard=0,
            lease_id="n" * 16,
            generation=generation or (2 if self.queue.before else 1),
            fence_token="e-1",
            attempt=attempt,
            stream=stream,
            endpoint=endpoint,
            body=raw,
            watchers="gw-1",
            watched=watched,
            waited_s=0.0,
            origin=origin,
            tenant="team",
        )
        return JobRun(job, self.engine, self.publisher, self.metrics, self.queue, self.around)

    async def close(self) -> None:
        """Stop the publisher."""
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task

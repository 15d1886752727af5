"""Runs jobs on an engine without Redis, for the tests of worker/core."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgpack
from prometheus_client import CollectorRegistry

from shared.job.job import NO_ORIGIN, Origin
from shared.job.log import DeltaDecoder, Entry, EventName, Position, read_entry
from shared.job.record import ResponseInfo
from shared.job.result import JobResult
from shared.platform.metrics.worker import WorkerMetrics
from shared.store.queue import NOT_TOLD, HeldJob, Queue, Step
from worker.core.output import Output
from worker.core.publish import Publisher
from worker.core.run import Run

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hello"}]


class Job(HeldJob):
    """A job whose id may be any text."""

    @property
    def shard(self) -> int:
        """The only one."""
        return 0


def make_job(**changes: Any) -> Job:
    """A streamed job in its first attempt."""
    fields: dict[str, Any] = {
        "id": "job",
        "generation": 1,
        "number": 1,
        "attempt": 1,
        "stream": True,
        "endpoint": CHAT,
        "body": b"{}",
        "body_bytes": 0,
        "watchers": "gw-1",
        "watched": False,
        "waited_s": 0.0,
        "tenant": "team",
    }
    return Job(**(fields | changes))


class SentResult(NamedTuple):
    """How a job was ended."""

    number: int
    """Of the last entry."""
    answer: JobResult


@dataclass
class RecordingQueue:
    """Records what the publisher sends; `outcome` is what becomes of results."""

    outcome: str = "ok"
    shards: int = 1
    before: list[Entry] = field(default_factory=list)
    """What earlier attempts have generated."""
    entries: list[Entry] = field(default_factory=list)
    """All that was sent, those of ends included."""
    ended: list[SentResult] = field(default_factory=list)
    restarted: list[str] = field(default_factory=list)
    """The jobs that begin anew, or fail, because they can't be continued."""
    restart_codes: list[str] = field(default_factory=list)
    watched: bool = False
    """Clients see the answer grow."""
    has_past: bool = False
    """The job is in a further attempt, whatever earlier ones have generated."""
    lost: int = 0
    """Number of an entry of the log that is lost; 0: none is."""

    parse_emit = staticmethod(Queue.parse_emit)

    @property
    def claim(self) -> Position:
        """The last claim of the job."""
        is_first = not (self.before or self.has_past)
        return Position(1, 1) if is_first else Position(3, len(self.before) + 3)

    def losses(self, shard: int) -> int:
        return 0

    def emit(self, shard: int, worker: str, version: bytes, step: Step) -> asyncio.Future[Any]:
        refused: list[bytes] = []
        for job_id, _, code in _rows(step.restarts, 3):
            self.restarted.append(job_id)
            self.restart_codes.append(code)
            if self.watched:
                refused += [job_id.encode(), b"failed"]
        if not refused:
            for _, entry_id, packed in _rows(step.entries, 3):
                self.entries.append(read_entry(Position.read(entry_id.encode()), packed))
            for end in step.ends:
                self._end(*end)
                if self.outcome != "ok":
                    refused += [end[0].encode(), self.outcome.encode()]
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        reply.set_result([refused, [], 0, version])
        return reply

    def _end(
        self, _: str, entry_id: str, packed: bytes, state: str, code: str, frame: bytes,
        body: bytes, response: bytes, headers: str, first_us: int, *counted: int,
    ) -> None:  # fmt: skip
        position = Position.read(entry_id.encode())
        self.entries.append(read_entry(position, packed))
        stored = ResponseInfo(*msgpack.unpackb(response))._asdict()
        assert first_us >= 0
        assert stored.pop("result_bytes") == counted[-1]
        answer = JobResult(
            error_code=code,
            body=body,
            headers=tuple(json.loads(headers or "{}").items()),
            **stored,
        )
        self.ended.append(SentResult(position.number, answer))

    async def read(self, job_id: str, after: Position, most: int) -> list[Entry]:
        own = self.claim
        entries = [Entry(Position(1, 1), None, (), EventName.CLAIMED)]
        for entry in self.before:
            position = Position(1, len(entries) + 1)
            entries.append(Entry(position, entry.journal, entry.items))
        entries.append(Entry(Position(2, own.number - 1), None, (), EventName.HANDED_OVER))
        entries.append(Entry(own, None, (), EventName.CLAIMED))
        return [
            entry
            for entry in entries
            if entry.position >= after and entry.position.number != self.lost
        ][:most]

    @property
    def log(self) -> list[Entry]:
        """The output that was sent."""
        numbers = [entry.position.number for entry in self.entries]
        first = self.claim.number + len(self.restarted) + 1
        assert numbers == list(range(first, first + len(numbers)))
        return [entry for entry in self.entries if entry.items or entry.journal is not None]

    @property
    def sent(self) -> bytes:
        """The bytes of the whole stream, those of earlier attempts included."""
        decoder = DeltaDecoder()
        return b"".join([decoder.decode(entry.items) for entry in [*self.before, *self.log]])

    @property
    def answer(self) -> JobResult:
        (end,) = self.ended
        assert end.number == self.entries[-1].position.number
        return end.answer


def _rows(flat: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (flat[at : at + size] for at in range(0, len(flat), size))


class Bench:
    """Runs jobs on an engine, with a publisher that sends to a recording queue: what a run asks of
    `Jobs`.

    `before`: the log of earlier attempts at the job.
    """

    worker_id = "w-1"

    def __init__(self, engine: Any, before: Sequence[Entry] = ()) -> None:
        self.queue = RecordingQueue(before=list(before))
        self.engine = engine
        self.metrics = WorkerMetrics(CollectorRegistry())
        self.runs: list[Run] = []
        self.publisher = Publisher(self)  # type: ignore[arg-type]
        self.engine.on_step = self.publisher.on_step
        self.task = asyncio.create_task(self.publisher.run())

    def idle_room(self, shard: int) -> tuple[str, int]:
        """See Jobs."""
        return NOT_TOLD

    def lost(self, output: Output, state: str) -> None:
        """See Jobs."""
        for run in self.runs:
            if run.output is output:
                run.abort("lost")

    def run(
        self,
        name: str = "job",
        *,
        endpoint: str = CHAT,
        attempt: int = 0,
        watched: bool = False,
        origin: Origin = NO_ORIGIN,
        **body: Any,
    ) -> Run:
        given: dict[str, Any] = {"messages": MESSAGES}
        if endpoint in ("/v1/completions", "/v1/responses"):
            given = {"prompt": "hello", "input": "hello"}
        raw = json.dumps(given | body).encode()
        stream = body.get("stream", False)
        self.queue.watched = stream or watched
        claim = self.queue.claim
        job = make_job(
            id=name, generation=claim.generation, number=claim.number, stream=stream, body=raw,
            attempt=attempt or (1 if claim.number == 1 else 2), endpoint=endpoint,
            watched=watched, origin=origin,
        )  # fmt: skip
        run = Run(self, job)  # type: ignore[arg-type]
        self.publisher.of(run.output).add(run.output)
        self.runs.append(run)
        return run

    async def close(self) -> None:
        """Stop the publisher."""
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task

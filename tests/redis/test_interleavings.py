"""Two workers, a canceller, an expirer, a reaper and a repairer on a few jobs, in random order.

After every step what Redis holds is compared with what the steps so far allow. The workers go by
the rules of worker/publish/publisher.py and worker/claim/lease.py, but late, and with lost calls
and replies. The number in a failing test's name is its seed: the same test makes the same steps
again.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from operator import itemgetter
from typing import Any, TypeVar

import pytest
from redis import Redis

from shared.protocol import keys
from shared.protocol.frames import FrameKind, encode
from shared.protocol.job import Job, LeasedJob, NewJob
from shared.protocol.job_log import Entry, pack_segment, parse_segments
from shared.protocol.lanes import CLIENT_LANES, LANES
from shared.protocol.record import parse_job, read_lease
from shared.protocol.result import JobResult
from shared.protocol.scripts.emit import Fenced, Step, make_step
from shared.protocol.states import TRANSITIONS, JobEvent, JobState
from shared.protocol.step_log import FLUSH_AFTER, STEPS, FinalEntry, JobOutput, JobStream, LogFlush
from shared.queue.job_queue import JobQueue
from tests.redis.conftest import (
    MAX_ATTEMPTS,
    POOL,
    TENANT,
    Frame,
    Listener,
    answer,
    decode,
    finish,
    grow_old,
    has_group,
    lane_of,
    make_job,
    repair,
    silent_end,
    take,
)
from worker.publish.output_buffer import OutputBuffer

SEEDS = range(40)
ACTS = 80
MOST_JOBS = 5
WORKERS = ("w-1", "w-2")
GATEWAYS = ("gw-1", "gw-2")
LEASE_S = 600.0
"""No lease runs out by itself; `grow_old` makes one look as if it had."""
LIVE = {JobState.QUEUED, JobState.IN_PROGRESS}
DEADLINES = keys.base(0) + keys.DEADLINES

T = TypeVar("T")
Received = tuple[str, int, int]
"""Job, number and kind of a frame."""


class Run(OutputBuffer):
    """A job in a worker's hands, as far as the worker knows."""

    __slots__ = ("begun", "ended_as")

    def __init__(self, job: LeasedJob) -> None:
        super().__init__(job, lambda _: None)
        self.begun = 0
        """The step with the first entry that is not flushed."""
        self.ended_as = ""
        """As what its worker has ended it, or is about to."""

    @property
    def can_send(self) -> bool:
        return not (self.discarded or self.ended_as)


class Batch:
    """What a worker sends, until Redis has taken it."""

    def __init__(
        self, items: list[tuple[Run, JobOutput]], log_flushes: list[tuple[Run, LogFlush]]
    ) -> None:
        self.items = items
        self.log_flushes = log_flushes
        self.tries = 0
        """Calls, renewals among them, which were lost or whose reply was."""
        self.refused = False
        self.carried_out: Step | None = None
        """As Redis has taken it already."""

    def step(self) -> Step:
        return make_step([each for _, each in self.items], [each for _, each in self.log_flushes])

    def is_valid_with(self, fence_token: str) -> bool:
        return bool(fence_token) and all(
            run.fence_token == fence_token for run, _ in [*self.items, *self.log_flushes]
        )

    def drop_stale(self, fence_token: str) -> None:
        """Leave out the output of jobs that the worker knows to have lost."""
        for run, _ in [*self.items, *self.log_flushes]:
            run.discarded = run.discarded or run.fence_token != fence_token
        self.items = [item for item in self.items if not item[0].discarded]
        self.log_flushes = [item for item in self.log_flushes if not item[0].discarded]


class Worker:
    """What one worker knows."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.fence_token = ""
        self.runs: dict[str, Run] = {}
        self.mail: list[LeasedJob | str] = []
        """Jobs, and ids of those to drop, that were sent to it and that it has not received yet."""
        self.batch: Batch | None = None
        self.steps = 0
        self.doubts = deque([-STEPS], maxlen=STEPS - FLUSH_AFTER)
        """The last steps of which it does not know whether Redis has taken them: each may stand
        twice in the step log, which has room for so many."""

    def receive(self) -> None:
        """The mail arrives."""
        for message in self.mail:
            if isinstance(message, str):
                if message in self.runs:
                    self.runs[message].discarded = True
                continue
            if message.id in self.runs:
                self.runs[message.id].discarded = True
            self.runs[message.id] = Run(message)
        self.mail = []

    def pack(
        self, senders: Iterable[tuple[Run, JobResult | None]], early: Callable[[], bool]
    ) -> None:
        """A step. Entries are flushed `early` or when their time has come."""
        self.steps += 1
        items = []
        for run, end in senders:
            output = run.take(end)
            assert output is not None
            items.append((run, output))
            if end is not None:
                run.ended_as = TRANSITIONS[end.event].target
            elif len(run.unflushed) == 1:
                run.begun = self.steps
        due = [
            run
            for run in self.runs.values()
            if run.unflushed
            and not run.discarded
            and (self.steps - run.begun == FLUSH_AFTER - 1 or early())
        ]
        self.batch = Batch(items, [(run, run.log_flush()) for run in due])

    def leave(self, run: Run) -> None:
        """The run is over."""
        if self.runs.get(run.job.id) is run:
            del self.runs[run.job.id]


class Fleet:
    """The actors, and what they know: every lease that was ever given, and whose it is now."""

    def __init__(
        self,
        queue: JobQueue,
        store: Redis,
        control: Listener,
        gateways: dict[str, Listener],
        seed: int,
    ) -> None:
        self.queue = queue
        self.store = store
        self.control = control
        """The first worker's control channel. The second worker has no subscription."""
        self.gateways = gateways
        self.random = random.Random(seed)
        self.workers = [Worker(name) for name in WORKERS]
        self.jobs: list[NewJob] = []
        self.states: dict[str, JobState] = {}
        self.leases: list[tuple[Worker, LeasedJob]] = []
        """All that were ever given."""
        self.holder: dict[str, tuple[Worker, LeasedJob]] = {}
        """Who may write, per job in progress."""
        self.last: dict[str, LeasedJob | None] = {}
        """Who could write last, per job; None if it was taken back."""
        self.published: dict[str, list[Frame]] = {}
        """The frames that were published under that lease."""
        self.watchers: dict[str, list[str]] = {}
        self.watched: set[str] = set()
        """Jobs whose answer somebody sees grow."""
        self.fences = dict.fromkeys(WORKERS, "")
        self.fence_tokens = ["", "x"]
        # Every other fleet has workers that bring hardly anything to an end.
        self.feeble = bool(seed % 2)
        self.haste = self.random.choice([0.0, 0.03, 0.5])
        """How likely entries are flushed before they must be."""
        self.calm = False
        """Nothing is lost on its way any more."""

    def chance(self, probability: float) -> bool:
        return not self.calm and self.random.random() < probability

    # --- jobs come to the workers ---

    async def submit(self) -> None:
        jobs = [
            make_job(
                id=f"job_000{self.random.getrandbits(96):024x}",
                lane=self.random.choice(CLIENT_LANES),
                stream=self.random.random() < 0.5,
                deadline_s=self.random.choice([None, 600.0]),
                gateway=self.random.choice(["", "gw-1"]),
            )
            for _ in range(min(self.random.choice([1, 1, 2, 3]), MOST_JOBS - len(self.jobs)))
        ]
        nobody_waits = JobState.QUEUED not in self.states.values()
        depths = await self.queue.submit_all(0, jobs, 100)
        for job in jobs:
            self.jobs.append(job)
            self.states[job.id] = JobState.QUEUED
            self.last[job.id] = None
            self.published[job.id] = []
            self.watchers[job.id] = job.gateway.split()
        handed = self.control.handed(self.queue)
        assert {lease.id for lease in handed} == {job.id for job in jobs[: len(handed)]}
        assert [depth == 0 for depth in depths] == [n < len(handed) for n in range(len(jobs))]
        assert not handed or nobody_waits, "a job has overtaken those that wait"
        self.given(self.workers[0], handed, lost=self.chance(0.1))

    async def acquire(self) -> None:
        worker = self.random.choice(self.workers)
        count, offer = self.random.randint(0, 3), self.random.randint(0, 4)
        got = await take(self.queue, count, worker=worker.name, lease_s=LEASE_S, offer=offer)
        assert len(got) <= count
        self.given(worker, got)

    def given(self, worker: Worker, leases: list[LeasedJob], *, lost: bool = False) -> None:
        """A worker has got jobs; it receives them soon, unless the message is lost."""
        for lease in leases:
            assert self.states[lease.id] is JobState.QUEUED, f"{lease.id} was given away"
            before = [other for _, other in self.leases if other.id == lease.id]
            assert lease.generation == len(before) + 1
            assert all(lease.lease_id != other.lease_id for _, other in self.leases), "given twice"
            assert lease.fence_token == self.fences[worker.name]
            assert self.listens(lease.id) == (lease.watchers, lease.watched)
            self.leases.append((worker, lease))
            self.holder[lease.id] = (worker, lease)
            self.last[lease.id] = lease
            self.published[lease.id] = []
        worker.mail += [] if lost else leases
        if not self.chance(0.2):
            worker.receive()

    async def receive(self) -> None:
        self.random.choice(self.workers).receive()

    # --- the workers send output ---

    async def emit(self) -> None:
        """Steps of one worker in a row, long ones at times: the step log has to overflow."""
        worker = self.random.choice(self.workers)
        for _ in range(self.random.choice([1, 1, 1, 1, 2, 3, STEPS, 2 * STEPS])):
            await self.step(worker, 0)
            for job in self.some(self.jobs):
                await self.check_log(job.id)

    async def finish(self) -> None:
        await self.step(self.random.choice(self.workers), 1)

    async def step(self, worker: Worker, n_ends: int) -> None:
        """The next try to send a pending batch, or a new one."""
        if worker.batch is None:
            for run in list(worker.runs.values()):
                if run.discarded and self.chance(0.3):
                    worker.leave(run)
            able = [run for run in worker.runs.values() if run.can_send]
            senders = self.random.sample(able, self.random.randint(0, len(able)))
            ends = dict.fromkeys(self.random.sample(able, min(n_ends, len(able))))
            for run in senders:
                if run not in ends or self.chance(0.5):  # its last output goes with the end
                    self.produce(run, able)
            if not senders and not ends:
                return
            sending = dict.fromkeys(senders) | {run: self.answer() for run in ends}
            worker.pack(sending.items(), lambda: self.chance(self.haste))
        await self.send(worker)

    def produce(self, run: Run, others: list[Run]) -> None:
        """Some tokens of a job; among them what looks like a frame of another."""
        for n in range(self.random.choice([1, 1, 1, 2])):
            text = f"{run.job.lease_id} {n} " + "x" * self.random.choice([0, 0, 0, 20, 300])
            run.delta(0, 0, [self.random.randrange(1 << 17)], text)
            if not run.job.stream:
                continue
            chunk = text.encode()
            if self.chance(0.2):
                other = self.random.choice(others).job.id
                chunk = encode(other, len(self.published[other]) + 1, FrameKind.CHUNK, (b"forged",))
            run.chunk(chunk)

    def answer(self) -> JobResult:
        return answer(event=self.random.choice([JobEvent.COMPLETE, JobEvent.FAIL]))

    async def send(self, worker: Worker) -> None:
        """One try, as `Publisher._retry` makes it."""
        batch = worker.batch
        assert batch is not None
        if not batch.is_valid_with(worker.fence_token):
            if not await self.renew(worker):
                batch.tries += 1
                return
            batch.drop_stale(worker.fence_token)
        elif batch.tries or batch.refused:
            batch.drop_stale(worker.fence_token)
        if not batch.items and not batch.log_flushes:
            worker.batch = None
            return
        if self.chance(0.1):  # it does not reach Redis
            batch.tries += 1
            return
        try:
            await self.call(worker, batch)
        except Fenced:
            worker.fence_token, batch.refused = "", True
            return
        if worker.steps - worker.doubts[0] >= STEPS and self.chance(0.2):  # the reply is lost
            worker.doubts.append(worker.steps)
            batch.tries += 1
            return
        for run, (_, _, end) in batch.items:
            if end is not None:
                worker.leave(run)
        worker.batch = None

    async def call(self, worker: Worker, batch: Batch) -> None:
        """Send the batch, and see what comes of it. Raises Fenced."""
        fence_token, fence, step = worker.fence_token, self.fences[worker.name], batch.step()
        before = self.everything() if fence != fence_token or batch.carried_out else {}
        self.received()
        try:
            lost = await self.queue.emit(
                0, worker.name, fence_token, step, repeated=batch.tries > 0
            )
        except Fenced:
            assert fence != fence_token
            assert self.everything() == before
            raise
        assert fence == fence_token
        sent, late = self.take_down(batch)
        assert lost == late
        received = self.received()
        if not batch.carried_out:
            assert received == sent
        elif (step.frame_sizes, step.frames) == (
            batch.carried_out.frame_sizes,
            batch.carried_out.frames,
        ):
            assert self.everything() == before
            assert received == {name: [] for name in GATEWAYS}
        else:
            # Some of its jobs were lost meanwhile. At most the listeners receive the others again,
            # and the step stands there twice.
            now, steps = self.everything(), keys.steps(0, worker.name).encode()
            assert now | {steps: b""} == before | {steps: b""}
            assert all(set(received[name]) <= set(sent[name]) for name in GATEWAYS)
        batch.carried_out = step

    def take_down(self, batch: Batch) -> tuple[dict[str, list[Received]], dict[str, str]]:
        """What gateways receive of a batch that was taken, and the jobs that it has not ended."""
        sent: dict[str, list[Received]] = {name: [] for name in GATEWAYS}
        late = {}
        for run, (_, packed, end) in batch.items:
            job_id, published = run.job.id, self.published[run.job.id]
            if not self.holds(run.job):
                # It can't tell the end that another has made from its own.
                assert end is not None, "a job has gone on that is not its worker's"
                assert run.ended_as == self.states[job_id]
                if self.last[job_id] != run.job:
                    late[job_id] = self.states[job_id].value
            if packed and self.counts(run, batch):
                (frame,) = decode(packed)
                if batch.carried_out is None:
                    published.append(frame)
                assert frame[1] <= len(published)
                assert published[frame[1] - 1] == frame
                watchers, watched = self.listens(job_id)
                for name in watchers.split() if run.job.stream or watched else ():
                    sent[name].append((job_id, *frame[1:3]))
        for run, (_, _, end) in batch.items:
            if end is None or not self.counts(run, batch):
                continue
            self.states[run.job.id] = JobState(run.ended_as)
            self.holder.pop(run.job.id, None)
            kind = FrameKind.DONE if run.job.stream else FrameKind.RESULT
            for name in self.watchers[run.job.id]:
                sent[name].append((run.job.id, end.seq, kind))
        for received in sent.values():
            received.sort(key=itemgetter(0))
        return sent, late

    def counts(self, run: Run, batch: Batch) -> bool:
        """Whether the worker may write for the job, now or when Redis first took the batch."""
        return self.holds(run.job) or (
            batch.carried_out is not None and self.last[run.job.id] == run.job
        )

    async def renew(self, worker: Worker) -> bool:
        """As `Lease.renew` does it; False if the reply is lost."""
        runs, fence = list(worker.runs.values()), self.fences[worker.name]
        renewal = await self.queue.renew(
            0, worker.name, worker.fence_token, LEASE_S, [run.job for run in runs]
        )
        if fence and fence == worker.fence_token:
            assert renewal.fence_token == fence
        else:
            assert renewal.fence_token not in self.fence_tokens, "a fencing token begins twice"
            self.fence_tokens.append(renewal.fence_token)
        self.fences[worker.name] = renewal.fence_token
        assert renewal.watchers == {
            run.job.id: self.listens(run.job.id) for run in runs if self.holds(run.job)
        }
        assert renewal.lost == {
            run.job.id: self.states[run.job.id] for run in runs if not self.holds(run.job)
        }
        if self.chance(0.1):
            return False
        worker.fence_token = renewal.fence_token
        for run in runs:
            run.fence_token = renewal.fence_token
            if run.job.id in renewal.watchers:
                watchers, watched = renewal.watchers[run.job.id]
                run.set_watchers(watchers, watched=watched)
            elif run.ended_as == renewal.lost[run.job.id]:
                run.set_watchers("", watched=False)  # by itself, perhaps: then all have received it
            else:
                run.discarded = True
        return True

    async def keep(self) -> None:
        """A worker renews its leases."""
        await self.renew(self.random.choice(self.workers))

    # --- some who must not write ---

    async def intrude(self) -> None:
        """Who does not know a worker's fencing token writes nothing, whatever else it knows."""
        name = self.random.choice(WORKERS)
        fence_tokens = [
            fence_token
            for fence_token in self.fence_tokens
            if fence_token != self.fences[name] or not fence_token
        ]
        for _, lease in self.some(self.leases):
            segment = pack_segment(1, [b"\xc0\xc0"])
            frame = encode(lease.id, 1, FrameKind.CHUNK, (b"forged",))
            late_output = (
                JobStream(lease),
                frame,
                self.random.choice([None, FinalEntry(2, segment, answer())]),
            )
            step = make_step([late_output], [LogFlush(lease.id, segment)])
            before, again = self.everything(), self.random.random() < 0.5
            self.received()
            with pytest.raises(Fenced):
                await self.queue.emit(
                    0, name, self.random.choice(fence_tokens), step, repeated=again
                )
            assert self.everything() == before
            assert self.received() == {name: [] for name in GATEWAYS}

    async def end_too_late(self) -> None:
        """Not even who knows the fencing token ends a job whose lease is over."""
        names = [name for name, fence_token in self.fences.items() if fence_token]
        over = [lease for _, lease in self.leases if not self.holds(lease)]
        for lease in self.some(over) if names else ():
            name, end, state = self.random.choice(names), self.answer(), self.states[lease.id]
            before = self.everything()
            self.received()
            step = make_step([silent_end(lease, 9, end)])
            lost = await self.queue.emit(0, name, self.fences[name], step)
            mine = lease == self.last[lease.id] and state is TRANSITIONS[end.event].target
            assert lost == ({} if mine else {lease.id: state})
            assert self.everything() == before
            assert self.received() == {name: [] for name in GATEWAYS}

    # --- workers lose their jobs ---

    async def release(self) -> None:
        chosen = {lease.id: lease for _, lease in self.some(self.leases, 2)}.values()
        blame = self.random.random() < 0.5
        expected = {x.id: self.without_worker(x, blame) for x in chosen if self.holds(x)}
        for worker in self.workers:
            for run in worker.runs.values():
                run.discarded = run.discarded or run.job in chosen
        assert await self.queue.release(chosen, "why", blame=blame) == expected
        self.invalidate_fence(expected)

    async def reject_unreceived(self) -> None:
        """A worker rejects jobs that it has not received."""
        worker = self.random.choice(self.workers)
        worker.receive()
        expected = {
            lease.id: self.without_worker(lease, False)
            for holder, lease in self.holder.values()
            if holder is worker and lease.id not in worker.runs
        }
        assert (
            await self.queue.reject_unreceived(POOL, worker.name, list(worker.runs), 0.0)
            == expected
        )
        self.invalidate_fence(expected)

    async def fall_silent(self) -> None:
        for _, lease in self.some(self.leases):
            if self.holds(lease):
                grow_old(self.store, lease)

    async def reap(self) -> None:
        held = {job_id: lease for job_id, (_, lease) in self.holder.items()}
        expected = {name: self.without_worker(held[name], True) for name in self.silent()}
        assert await self.queue.reap(0, LEASE_S) == expected
        self.invalidate_fence(expected)

    def silent(self) -> list[str]:
        """The jobs whose lease has not been renewed for long."""
        return [
            fields[b"job"].decode()
            for lane in LANES
            if has_group(self.store, stream := keys.queue(0, POOL, lane))
            for item in self.store.xpending_range(
                stream, keys.GROUP, "-", "+", 100, idle=int(LEASE_S * 1000)
            )
            for _, fields in self.store.xrange(stream, item["message_id"], item["message_id"])
        ]

    def without_worker(self, lease: LeasedJob, blame: bool) -> str:
        """What becomes of a job in progress that loses its worker."""
        if self.published[lease.id] and (lease.stream or lease.id in self.watched):
            return "failed"
        packed: Any = self.store.hget(keys.job(0, lease.id), "lease")
        attempts = read_lease(packed).attempts
        return "failed" if blame and attempts >= MAX_ATTEMPTS else "queued"

    async def forget(self) -> None:
        """A fencing token is over when nobody has renewed it for long."""
        name = self.random.choice(WORKERS)
        self.store.delete(keys.fence(0, name))
        self.fences[name] = ""

    def invalidate_fence(self, job_ids: Iterable[str], *, hint: bool = False) -> None:
        """Jobs in progress have changed. With the `hint` their worker may receive the change."""
        for job_id in job_ids:
            if job_id in self.holder:
                worker, _ = self.holder[job_id]
                self.fences[worker.name] = ""
                if hint and self.chance(0.5):
                    worker.mail.append(job_id)

    # --- clients and the clock ---

    async def cancel(self) -> None:
        for job in self.some(self.jobs):
            state = await self.queue.cancel(job.id, TENANT)
            was = self.states[job.id]
            assert state is (JobState.CANCELLED if was in LIVE else was)
            self.invalidate_fence([job.id], hint=True)

    async def pass_deadline(self) -> None:
        for job in self.some(self.jobs):
            if job.deadline_s and self.states[job.id] in LIVE:
                self.store.zadd(DEADLINES, {job.id: 1})
                self.store.hset(keys.job(0, job.id), "deadline_us", 1)

    async def expire(self) -> None:
        expired = await self.queue.expire(0, 1)
        self.invalidate_fence(expired, hint=True)

    async def watch(self) -> None:
        for job in self.some(self.jobs):
            gateway, sees = self.random.choice(GATEWAYS), self.random.random() < 0.5
            await self.queue.watch(job.id, gateway, follow=sees)
            if self.states[job.id] not in LIVE:
                continue
            before = self.listens(job.id)
            if gateway not in self.watchers[job.id]:
                self.watchers[job.id].append(gateway)
            if sees:
                self.watched.add(job.id)
            if self.listens(job.id) != before:
                self.invalidate_fence([job.id])

    async def repair(self) -> None:
        """Nothing is broken here, so there is nothing to do."""
        assert await repair(self.queue) == {}

    def actors(self) -> dict[Callable[[], Awaitable[None]], int]:
        """Who may act, and how often."""
        return {
            self.submit: 6,
            self.acquire: 10,
            self.receive: 4,
            self.emit: 4 if self.feeble else 14,
            self.finish: 0 if self.feeble else 5,
            self.keep: 2,
            self.intrude: 1,
            self.end_too_late: 1,
            self.release: 3,
            self.reject_unreceived: 2,
            self.fall_silent: 5,
            self.reap: 5,
            self.forget: 1,
            self.cancel: 0 if self.feeble else 2,
            self.pass_deadline: 2,
            self.expire: 2,
            self.watch: 3,
            self.repair: 2,
        }

    def some(self, things: list[T], most: int = 1) -> list[T]:
        return self.random.sample(things, min(most, len(things)))

    def holds(self, lease: LeasedJob) -> bool:
        return lease.id in self.holder and self.holder[lease.id][1] == lease

    def listens(self, job_id: str) -> tuple[str, bool]:
        return " ".join(self.watchers[job_id]), job_id in self.watched

    def received(self) -> dict[str, list[Received]]:
        """What gateways have received since the last look, by job."""
        return {
            name: sorted(
                ((frame[0].decode(), *frame[1:3]) for frame in listener.frames()),
                key=itemgetter(0),
            )
            for name, listener in self.gateways.items()
        }

    def everything(self) -> dict[bytes, bytes]:
        """All that Redis holds."""
        names = sorted(self.store.keys())
        pipe = self.store.pipeline()
        for name in names:
            pipe.dump(name)
        return dict(zip(names, pipe.execute(), strict=True))

    # --- the checks ---

    async def check(self) -> None:
        """Everything that must hold after every step."""
        entries, pending = self.entries()
        for job in self.jobs:
            pipe = self.store.pipeline()
            pipe.hgetall(keys.job(0, job.id))
            pipe.pttl(keys.job(0, job.id))
            pipe.pttl(keys.log(0, job.id))
            pipe.zscore(keys.waiting(0, POOL, job.lane), job.id)
            pipe.zscore(DEADLINES, job.id)
            raw, job_ttl, log_ttl, waits, deadline = pipe.execute()
            now = parse_job(job.id, raw)
            self.check_state(now)
            live, running = now.state in LIVE, now.state is JobState.IN_PROGRESS
            await self.check_log(job.id)
            assert (job.id in self.holder) == running
            if running:
                worker, lease = self.holder[job.id]
                held_by = (worker.name, lease.lease_id, lease.generation)
                assert read_lease(raw[b"lease"])[:3] == held_by
            if b"lease" in raw:
                assert read_lease(raw[b"lease"]).attempts <= MAX_ATTEMPTS
            assert (waits is not None) == (now.state is JobState.QUEUED)
            assert (deadline is not None) == (live and job.deadline_s is not None)
            assert (job_ttl > 0) == (log_ttl > 0) == (not live)
            mine = [entry for entry, owner in entries.items() if owner == job.id]
            if live:
                name = lane_of(raw)
                assert mine == [(name, raw[b"entry"])], "one entry per job that is not over"
            # A job that ended while it waited leaves its entry to be met and dropped by a worker.
            assert len(mine) == 1 if running else len(mine) <= 1
            assert {entry in pending for entry in mine} <= {running}
        assert pending <= set(entries)
        for worker in self.workers:
            self.check_worker(worker)

    def check_state(self, now: Job) -> None:
        """The step led from the last state to this one by an event that the state machine has."""
        was = self.states[now.id]
        if now.state is not was:
            ways = [t for t in TRANSITIONS.values() if was in t.sources and t.target is now.state]
            assert ways, f"{was} -> {now.state}"
        if now.state is not JobState.IN_PROGRESS:
            self.holder.pop(now.id, None)
        if now.state is JobState.QUEUED:
            self.last[now.id], self.published[now.id] = None, []
        self.states[now.id] = now.state

    async def check_log(self, job_id: str) -> None:
        """The answer is what was published under the last lease, wherever it is stored."""
        state, published = self.states[job_id], self.published[job_id]
        entries = [Entry(seq, items or (), journal, "") for _, seq, _, journal, items in published]
        if state.terminal:
            entries.append(Entry(len(entries) + 1, (), None, state))
        after = self.random.randint(0, len(entries) + 1)
        last = await self.queue.last_entry(job_id)
        if last is not None and last.end:
            entries[-1] = replace(entries[-1], tokens=last.tokens)
        assert last == (entries[-1] if entries else None)
        assert await self.queue.entries(job_id, after) == entries[after:]
        log = self.store.lrange(keys.log(0, job_id), 0, -1)
        stored = [entry for segment in log for entry in parse_segments([segment])]
        assert stored == entries[: len(stored)]
        assert len(stored) == len(entries) or not state.terminal

    def check_worker(self, worker: Worker) -> None:
        """A worker that may write is wrong about none of its jobs."""
        fence = self.store.get(keys.fence(0, worker.name))
        assert (fence or b"").decode() == self.fences[worker.name]
        length, ttl = (
            call(keys.steps(0, worker.name)) for call in (self.store.llen, self.store.ttl)
        )
        assert length % 2 == 0
        assert length <= 2 * STEPS
        assert (ttl > 0) == (length > 0)
        known = [
            (each.job, each.fence_token, each.watchers)
            for each in worker.runs.values()
            if each.can_send
        ]
        known += [
            (each, each.fence_token, each.watchers)
            for each in worker.mail
            if not isinstance(each, str)
        ]
        for lease, fence_token, watchers in known:
            if fence_token and fence_token == self.fences[worker.name]:
                assert self.holds(lease), "a worker takes a job for its own"
                assert watchers == self.listens(lease.id)[0]
        for run in worker.runs.values():
            if run.can_send and run.fence_token and run.fence_token == self.fences[worker.name]:
                watchers, watched = self.listens(run.job.id)
                assert run.subscribers == (watchers if run.job.stream or watched else "")

    def entries(self) -> tuple[dict[tuple[str, bytes], str], set[tuple[str, bytes]]]:
        """What is in the lanes, (lane, entry) -> job, and what of it is delivered."""
        entries: dict[tuple[str, bytes], str] = {}
        pending: set[tuple[str, bytes]] = set()
        for lane in LANES:
            stream = keys.queue(0, POOL, lane)
            for entry, fields in self.store.xrange(stream):
                entries[lane, entry] = fields[b"job"].decode()
            if has_group(self.store, stream):
                delivered = self.store.xpending_range(stream, keys.GROUP, "-", "+", 100)
                pending |= {(lane, item["message_id"]) for item in delivered}
        return entries, pending

    async def bring_to_an_end(self) -> None:
        """Nothing goes wrong any more: the workers end what they know of, a new one the rest."""
        self.calm = True
        for worker in self.workers:
            worker.receive()
            while worker.batch is not None:
                await self.send(worker)
            await self.renew(worker)
            ending = [run for run in worker.runs.values() if run.can_send]
            if ending:
                worker.pack([(run, answer()) for run in ending], lambda: False)
            while worker.batch is not None:
                await self.send(worker)
            await self.check()
        left = {job_id: lease for job_id, (_, lease) in self.holder.items()}
        expected = {job_id: self.without_worker(lease, False) for job_id, lease in left.items()}
        assert await self.queue.release(left.values(), "drained", blame=False) == expected
        for lease in await take(self.queue, worker="w-3"):
            assert await finish(self.queue, lease, 1, answer()) == "ok"


@pytest.fixture
def control(store: Redis) -> Iterator[Listener]:
    """The first worker is there; what the second one offers, nobody may have."""
    listener = Listener(store, keys.control_channel(WORKERS[0]))
    yield listener
    listener.close()


@pytest.fixture
def gateways(store: Redis) -> Iterator[dict[str, Listener]]:
    listeners = {name: Listener(store, keys.tokens_channel(name)) for name in GATEWAYS}
    yield listeners
    for listener in listeners.values():
        listener.close()


@pytest.mark.parametrize("seed", SEEDS)
async def test_whatever_happens_every_promise_holds(
    queue: JobQueue, store: Redis, control: Listener, gateways: dict[str, Listener], seed: int
) -> None:
    fleet = Fleet(queue, store, control, gateways, seed)
    actors = fleet.actors()
    await fleet.submit()
    for _ in range(ACTS):
        (act,) = fleet.random.choices(list(actors), list(actors.values()))
        await act()
        await fleet.check()
    await fleet.bring_to_an_end()
    assert fleet.entries() == ({}, set())
    fleet_over = [await queue.get(job.id) for job in fleet.jobs]
    assert all(job is not None and job.state.terminal for job in fleet_over)

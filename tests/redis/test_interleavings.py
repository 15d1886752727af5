"""Two workers, a canceller, an expirer, a reaper and its check on a few jobs, in random order.

After every step, Redis is compared with what the steps so far allow. The workers follow
the rules of worker/core/publisher.py and worker/core/lease.py, but late, and with lost calls
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

from shared.job.frames import FrameKind, encode
from shared.job.job import Job, LeasedJob, NewJob
from shared.job.job_log import Entry, pack_segment, parse_segments
from shared.job.lanes import CLIENT_LANES, LANES, SUSPECT_LANE
from shared.job.placement import PlacementRules
from shared.job.record import parse_job, read_lease
from shared.job.replies import Fenced
from shared.job.result import JobResult
from shared.job.states import TRANSITIONS, JobEvent, JobState
from shared.job.step_log import FLUSH_AFTER, STEPS, FinalEntry, JobOutput, JobStream, LogFlush
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.scripts.emit import Step, make_step
from tests.redis.conftest import (
    MAX_ATTEMPTS,
    POOL,
    ChannelSubscriber,
    Frame,
    answer,
    claim,
    decode,
    end_without_output,
    expire_lease,
    finish,
    has_group,
    lane_of,
    log_entries,
    make_job,
)
from worker.core.output_buffer import OutputBuffer

ACTS = 80
MOST_JOBS = 5
WORKERS = ("w-1", "w-2")
TENANTS = ("a", "b")
GATEWAYS = ("gw-1", "gw-2")
PREFIXES = (b"", b"prefix-a", b"prefix-aprefix-b", b"prefix-c" * 4)
LEASE_S = 600.0
"""No lease runs out by itself; `expire_lease` sets its idle time."""
LIVE = {JobState.QUEUED, JobState.IN_PROGRESS}
DEADLINES = keys.base(0) + keys.DEADLINES

T = TypeVar("T")
Received = tuple[str, int, int]
"""Job, number and kind of a frame."""


class Run(OutputBuffer):
    """A job that a worker believes to hold."""

    __slots__ = ("begun", "ended_as")

    def __init__(self, job: LeasedJob, from_seq: int) -> None:
        super().__init__(job, lambda _: None)
        self._seq = from_seq
        self.begun = 0
        """The step with the first entry that is not flushed."""
        self.ended_as = ""
        """The state in which its worker has ended it, or is about to."""

    @property
    def may_send(self) -> bool:
        return not (self.discarded or self.ended_as)


class Batch:
    """The output of a step, pending until Redis has stored it."""

    def __init__(
        self, items: list[tuple[Run, JobOutput]], log_flushes: list[tuple[Run, LogFlush]]
    ) -> None:
        self.items = items
        self.log_flushes = log_flushes
        self.tries = 0
        """Lost calls and lost replies, those of renewals among them."""
        self.refused = False
        self.applied: Step | None = None
        """The step as Redis has stored it, if it has."""

    def step(self) -> Step:
        return make_step([each for _, each in self.items], [each for _, each in self.log_flushes])

    def is_valid_with(self, fence_token: str) -> bool:
        return bool(fence_token) and all(
            run.fence_token == fence_token for run, _ in [*self.items, *self.log_flushes]
        )

    def drop_stale(self, fence_token: str) -> None:
        """Remove the output of jobs that the worker has lost, as far as it was notified."""
        for run, _ in [*self.items, *self.log_flushes]:
            run.discarded = run.discarded or run.fence_token != fence_token
        self.items = [item for item in self.items if not item[0].discarded]
        self.log_flushes = [item for item in self.log_flushes if not item[0].discarded]


class Worker:
    """The state of one worker."""

    def __init__(self, name: str, from_seq: dict[str, int]) -> None:
        self.name = name
        self.from_seq = from_seq
        """By lease id, the number of the entry behind which the lease continues."""
        self.fence_token = ""
        self.runs: dict[str, Run] = {}
        self.inbox: list[LeasedJob | str] = []
        """Messages that it has not processed yet: jobs, and ids of jobs to drop."""
        self.batch: Batch | None = None
        self.steps = 0
        self.unconfirmed_steps = deque([-STEPS], maxlen=STEPS - FLUSH_AFTER)
        """The last steps whose reply was lost. Redis may have stored each of them, so each may be
        twice in the step log, which has room for so many."""

    def receive(self) -> None:
        """Process the messages in the inbox."""
        for message in self.inbox:
            if isinstance(message, str):
                if message in self.runs:
                    self.runs[message].discarded = True
                continue
            if message.id in self.runs:
                self.runs[message.id].discarded = True
            self.runs[message.id] = Run(message, self.from_seq[message.lease_id])
        self.inbox = []

    def pack(
        self, senders: Iterable[tuple[Run, JobResult | None]], early: Callable[[], bool]
    ) -> None:
        """Make the next batch. Due entries are flushed, and others if `early` returns true."""
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

    def remove(self, run: Run) -> None:
        """Remove an ended run."""
        if self.runs.get(run.job.id) is run:
            del self.runs[run.job.id]


class Fleet:
    """The actors, and the expected state: every lease ever granted, and its holder now."""

    def __init__(
        self,
        queue: JobQueue,
        store: Redis,
        control: ChannelSubscriber,
        gateways: dict[str, ChannelSubscriber],
        seed: int,
    ) -> None:
        self.queue = queue
        self.store = store
        self.control = control
        """The first worker's control channel. The second worker has no subscription."""
        self.gateways = gateways
        self.random = random.Random(seed)
        self.from_seq: dict[str, int] = {}
        """By lease id, how many entries the job's log had when the lease was made."""
        self.workers = [Worker(name, self.from_seq) for name in WORKERS]
        self.jobs: list[NewJob] = []
        self.states: dict[str, JobState] = {}
        self.leases: list[tuple[Worker, LeasedJob]] = []
        """All that were ever granted."""
        self.holder: dict[str, tuple[Worker, LeasedJob]] = {}
        """The worker that may write, per job in progress."""
        self.last: dict[str, LeasedJob | None] = {}
        """The last lease per job; None if the job was requeued since."""
        self.published: dict[str, list[Frame]] = {}
        """The frames that were published of each job, under all leases."""
        self.watchers: dict[str, list[str]] = {}
        self.watched: set[str] = set()
        """Jobs whose output is shown to a client while it grows."""
        self.fences = dict.fromkeys(WORKERS, "")
        self.fence_tokens = ["", "x"]
        # In every other fleet, workers end hardly any job.
        self.few_ends = bool(seed % 2)
        # In every third, jobs have prefixes: a tenant's order is not that of time then.
        self.placed = seed % 3 == 0
        queue.placement = PlacementRules(patience_s=self.random.choice([0.0, LEASE_S]))
        self.early_flush_chance = self.random.choice([0.0, 0.03, 0.5])
        """The probability that entries are flushed before they are due."""
        self.no_losses = False
        """From now on, no call and no message is lost."""

    def chance(self, probability: float) -> bool:
        return not self.no_losses and self.random.random() < probability

    # --- jobs come to the workers ---

    async def submit(self) -> None:
        jobs = [
            make_job(
                id=f"job_000{self.random.getrandbits(96):024x}",
                tenant=self.random.choice(TENANTS),
                weight=self.random.choice([1.0, 1.0, 2.5]),
                lane=self.random.choice(CLIENT_LANES),
                stream=self.random.random() < 0.5,
                deadline_s=self.random.choice([None, 600.0]),
                gateway=self.random.choice(["", "gw-1"]),
                prefixes=self.random.choice(PREFIXES) if self.placed else b"",
            )
            for _ in range(min(self.random.choice([1, 1, 2, 3]), MOST_JOBS - len(self.jobs)))
        ]
        queue_was_empty = JobState.QUEUED not in self.states.values()
        depths: list[Any] = await self.queue.submit_all(0, jobs, 100)
        for job in jobs:
            self.jobs.append(job)
            self.states[job.id] = JobState.QUEUED
            self.last[job.id] = None
            self.published[job.id] = []
            self.watchers[job.id] = job.gateway.split()
        assigned = self.control.assigned(self.queue)
        leased = [job.id for job, depth in zip(jobs, depths, strict=True) if depth == 0]
        assert {lease.id for lease in assigned} == set(leased)
        assert leased == [job.id for job in jobs[: len(assigned)]]
        assert not assigned or queue_was_empty, "a job has overtaken queued ones"
        self.record_leases(self.workers[0], assigned, lost=self.chance(0.1))

    async def acquire(self) -> None:
        worker = self.random.choice(self.workers)
        count, slots = self.random.randint(0, 3), self.random.randint(0, 4)
        waiting = self.in_order()
        got = await claim(self.queue, count, worker=worker.name, lease_s=LEASE_S, slots=slots)
        assert len(got) <= count
        for lane_and_tenant, ids in waiting.items():
            taken = [lease.id for lease in got if lease.id in ids]
            in_order = taken == ids[: len(taken)] or self.placed
            assert in_order, f"not the oldest jobs of {lane_and_tenant}"
        self.record_leases(worker, got)

    def in_order(self) -> dict[tuple[str, str], list[str]]:
        """The jobs that wait in client lanes, by lane and tenant, oldest first."""
        found: dict[tuple[str, str], list[str]] = {}
        for job in self.jobs:
            if self.states[job.id] is JobState.QUEUED:
                raw = self.store.hgetall(keys.job(0, job.id))
                if lane_of(raw) == job.lane and raw.get(b"deadline_us") != b"1":
                    found.setdefault((job.lane, job.tenant), []).append(job.id)
        return found

    def record_leases(self, worker: Worker, leases: list[LeasedJob], *, lost: bool = False) -> None:
        """Record new leases, and send the jobs to the worker unless the message is `lost`."""
        for lease in leases:
            assert self.states[lease.id] is JobState.QUEUED, f"{lease.id} was given away"
            before = [other for _, other in self.leases if other.id == lease.id]
            assert lease.generation == len(before) + 1
            assert all(lease.lease_id != other.lease_id for _, other in self.leases), "given twice"
            assert lease.fence_token == self.fences[worker.name]
            assert self.watchers_of(lease.id) == (lease.watchers, lease.watched)
            self.leases.append((worker, lease))
            self.holder[lease.id] = (worker, lease)
            self.last[lease.id] = lease
            self.from_seq[lease.lease_id] = len(self.published[lease.id])
        worker.inbox += [] if lost else leases
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
            for job in self.sample(self.jobs):
                await self.check_log(job.id)

    async def finish(self) -> None:
        await self.step(self.random.choice(self.workers), 1)

    async def step(self, worker: Worker, n_ends: int) -> None:
        """The next try to send a pending batch, or a new one."""
        if worker.batch is None:
            for run in list(worker.runs.values()):
                if run.discarded and self.chance(0.3):
                    worker.remove(run)
            able = [run for run in worker.runs.values() if run.may_send]
            senders = self.random.sample(able, self.random.randint(0, len(able)))
            ends = dict.fromkeys(self.random.sample(able, min(n_ends, len(able))))
            for run in senders:
                if run not in ends or self.chance(0.5):  # its last output goes with the end
                    self.produce(run, able)
            if not senders and not ends:
                return
            sending = dict.fromkeys(senders) | {run: self.answer() for run in ends}
            worker.pack(sending.items(), lambda: self.chance(self.early_flush_chance))
        await self.send(worker)

    def produce(self, run: Run, others: list[Run]) -> None:
        """Some tokens of a job; some texts look like a frame of another job."""
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
        """Make one attempt to send, as `Publisher._retry` does."""
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
        may_be_lost = worker.steps - worker.unconfirmed_steps[0] >= STEPS
        if may_be_lost and self.chance(0.2):  # the reply is lost
            worker.unconfirmed_steps.append(worker.steps)
            batch.tries += 1
            return
        for run, (_, _, end) in batch.items:
            if end is not None:
                worker.remove(run)
        worker.batch = None

    async def call(self, worker: Worker, batch: Batch) -> None:
        """Send the batch and check the effects. Raises Fenced."""
        fence_token, fence, step = worker.fence_token, self.fences[worker.name], batch.step()
        before = self.dump() if fence != fence_token or batch.applied else {}
        self.received()
        try:
            lost = await self.queue.emit(
                0, worker.name, fence_token, step, repeated=batch.tries > 0
            )
        except Fenced:
            assert fence != fence_token
            assert self.dump() == before
            raise
        assert fence == fence_token
        sent, late = self.expected_effects(batch)
        assert lost == late
        received = self.received()
        if not batch.applied:
            assert received == sent
        elif (step.frame_sizes, step.frames) == (
            batch.applied.frame_sizes,
            batch.applied.frames,
        ):
            assert self.dump() == before
            assert received == {name: [] for name in GATEWAYS}
        else:
            # Some of its jobs were lost meanwhile. At most, gateways receive the others again,
            # and the step log has the step twice.
            now, steps = self.dump(), keys.steps(0, worker.name).encode()
            assert now | {steps: b""} == before | {steps: b""}
            assert all(set(received[name]) <= set(sent[name]) for name in GATEWAYS)
        batch.applied = step

    def expected_effects(self, batch: Batch) -> tuple[dict[str, list[Received]], dict[str, str]]:
        """What a stored batch sends to each gateway, and the states of jobs that it did not end."""
        sent: dict[str, list[Received]] = {name: [] for name in GATEWAYS}
        late = {}
        for run, (_, packed, end) in batch.items:
            job_id, published = run.job.id, self.published[run.job.id]
            if not self.holds(run.job):
                # The worker can't distinguish its own end from another's.
                assert end is not None, "a worker wrote for a job that it has lost"
                assert run.ended_as == self.states[job_id]
                if self.last[job_id] != run.job:
                    late[job_id] = self.states[job_id].value
            if packed and self.counts(run, batch):
                (frame,) = decode(packed)
                if batch.applied is None:
                    published.append(frame)
                assert frame[1] <= len(published)
                assert published[frame[1] - 1] == frame
                watchers, watched = self.watchers_of(job_id)
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
        """Whether the worker may write for the job, now or when Redis first stored the batch."""
        return self.holds(run.job) or (
            batch.applied is not None and self.last[run.job.id] == run.job
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
            run.job.id: self.watchers_of(run.job.id) for run in runs if self.holds(run.job)
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
                # Perhaps this worker ended it; then the end is published already.
                run.set_watchers("", watched=False)
            else:
                run.discarded = True
        return True

    async def renew_some(self) -> None:
        """Renew the leases of one worker."""
        await self.renew(self.random.choice(self.workers))

    # --- writes that must be refused ---

    async def write_with_a_wrong_token(self) -> None:
        """A call with a wrong fencing token writes nothing, even with a valid lease id."""
        name = self.random.choice(WORKERS)
        fence_tokens = [
            fence_token
            for fence_token in self.fence_tokens
            if fence_token != self.fences[name] or not fence_token
        ]
        for _, lease in self.sample(self.leases):
            segment = pack_segment(1, [b"\xc0\xc0"])
            frame = encode(lease.id, 1, FrameKind.CHUNK, (b"forged",))
            late_output = (
                JobStream(lease),
                frame,
                self.random.choice([None, FinalEntry(2, segment, answer())]),
            )
            step = make_step([late_output], [LogFlush(lease.id, segment)])
            before, again = self.dump(), self.random.random() < 0.5
            self.received()
            with pytest.raises(Fenced):
                await self.queue.emit(
                    0, name, self.random.choice(fence_tokens), step, repeated=again
                )
            assert self.dump() == before
            assert self.received() == {name: [] for name in GATEWAYS}

    async def end_lost_jobs(self) -> None:
        """A job whose lease is over can't be ended, even with the right fencing token."""
        names = [name for name, fence_token in self.fences.items() if fence_token]
        over = [lease for _, lease in self.leases if not self.holds(lease)]
        for lease in self.sample(over) if names else ():
            name, end, state = self.random.choice(names), self.answer(), self.states[lease.id]
            before = self.dump()
            self.received()
            step = make_step([end_without_output(lease, 9, end)])
            lost = await self.queue.emit(0, name, self.fences[name], step)
            mine = lease == self.last[lease.id] and state is TRANSITIONS[end.event].target
            assert lost == ({} if mine else {lease.id: state})
            assert self.dump() == before
            assert self.received() == {name: [] for name in GATEWAYS}

    # --- workers lose their jobs ---

    async def release(self) -> None:
        chosen = {lease.id: lease for _, lease in self.sample(self.leases, 2)}.values()
        blame = self.random.random() < 0.5
        expected = {x.id: self.state_without_worker(x, blame) for x in chosen if self.holds(x)}
        for worker in self.workers:
            for run in worker.runs.values():
                run.discarded = run.discarded or run.job in chosen
        in_turn = self.random.random() < 0.5
        assert await self.queue.release(chosen, "why", blame=blame, in_turn=in_turn) == expected
        self.invalidate_fence(expected)

    async def reject_unreceived(self) -> None:
        """A worker rejects jobs that it has not received."""
        worker = self.random.choice(self.workers)
        worker.receive()
        expected = {
            lease.id: self.state_without_worker(lease, False)
            for holder, lease in self.holder.values()
            if holder is worker and lease.id not in worker.runs
        }
        assert (
            await self.queue.reject_unreceived(POOL, worker.name, list(worker.runs), 0.0)
            == expected
        )
        self.invalidate_fence(expected)

    async def let_leases_expire(self) -> None:
        for _, lease in self.sample(self.leases):
            if self.holds(lease):
                expire_lease(self.store, lease)

    async def reap(self) -> None:
        held = {job_id: lease for job_id, (_, lease) in self.holder.items()}
        expected = {
            name: self.state_without_worker(held[name], True) for name in self.expired_leases()
        }
        assert await self.queue.reap(0, LEASE_S) == expected
        self.invalidate_fence(expected)

    def expired_leases(self) -> list[str]:
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

    def state_without_worker(self, lease: LeasedJob, blame: bool) -> str:
        """The next state of a job in progress that loses its worker."""
        if len(self.published[lease.id]) > self.from_seq[lease.lease_id]:
            return "queued"
        packed: Any = self.store.hget(keys.job(0, lease.id), "lease")
        attempts = read_lease(packed).attempts
        return "failed" if blame and attempts >= MAX_ATTEMPTS else "queued"

    async def forget(self) -> None:
        """Delete a fencing token, as if it had expired."""
        name = self.random.choice(WORKERS)
        self.store.delete(keys.fence(0, name))
        self.fences[name] = ""

    def invalidate_fence(self, job_ids: Iterable[str], *, hint: bool = False) -> None:
        """Record that jobs have changed. With `hint`, a control message may reach their worker."""
        for job_id in job_ids:
            if job_id in self.holder:
                worker, _ = self.holder[job_id]
                self.fences[worker.name] = ""
                if hint and self.chance(0.5):
                    worker.inbox.append(job_id)

    # --- clients and the clock ---

    async def cancel(self) -> None:
        for job in self.sample(self.jobs):
            state = await self.queue.cancel(job.id, job.tenant)
            was = self.states[job.id]
            assert state is (JobState.CANCELLED if was in LIVE else was)
            self.invalidate_fence([job.id], hint=True)

    async def pass_deadline(self) -> None:
        for job in self.sample(self.jobs):
            if job.deadline_s and self.states[job.id] in LIVE:
                self.store.zadd(DEADLINES, {job.id: 1})
                self.store.hset(keys.job(0, job.id), "deadline_us", 1)

    async def expire(self) -> None:
        _, expired = await self.queue.expire(0, 1)
        self.invalidate_fence(list(expired), hint=True)

    async def watch(self) -> None:
        for job in self.sample(self.jobs):
            gateway, follow = self.random.choice(GATEWAYS), self.random.random() < 0.5
            await self.queue.watch(job.id, gateway, follow=follow)
            if self.states[job.id] not in LIVE:
                continue
            before = self.watchers_of(job.id)
            if gateway not in self.watchers[job.id]:
                self.watchers[job.id].append(gateway)
            if follow:
                self.watched.add(job.id)
            if self.watchers_of(job.id) != before:
                self.invalidate_fence([job.id])

    async def look_for_lost_jobs(self) -> None:
        """No data is damaged, so nothing is requeued."""
        assert not await self.queue.check(0)

    def actors(self) -> dict[Callable[[], Awaitable[None]], int]:
        """The actions and their weights."""
        return {
            self.submit: 6,
            self.acquire: 10,
            self.receive: 4,
            self.emit: 4 if self.few_ends else 14,
            self.finish: 0 if self.few_ends else 5,
            self.renew_some: 2,
            self.write_with_a_wrong_token: 1,
            self.end_lost_jobs: 1,
            self.release: 3,
            self.reject_unreceived: 2,
            self.let_leases_expire: 5,
            self.reap: 5,
            self.forget: 1,
            self.cancel: 0 if self.few_ends else 2,
            self.pass_deadline: 2,
            self.expire: 2,
            self.watch: 3,
            self.look_for_lost_jobs: 2,
        }

    def sample(self, things: list[T], most: int = 1) -> list[T]:
        return self.random.sample(things, min(most, len(things)))

    def holds(self, lease: LeasedJob) -> bool:
        return lease.id in self.holder and self.holder[lease.id][1] == lease

    def watchers_of(self, job_id: str) -> tuple[str, bool]:
        return " ".join(self.watchers[job_id]), job_id in self.watched

    def received(self) -> dict[str, list[Received]]:
        """What gateways have received since the last call, by job."""
        return {
            name: sorted(
                ((frame[0].decode(), *frame[1:3]) for frame in subscriber.frames()),
                key=itemgetter(0),
            )
            for name, subscriber in self.gateways.items()
        }

    def dump(self) -> dict[bytes, bytes]:
        """All that Redis holds."""
        names = sorted(self.store.keys())
        pipe = self.store.pipeline(transaction=False)
        for name in names:
            pipe.dump(name)
        return dict(zip(names, pipe.execute(), strict=True))

    # --- the checks ---

    async def check(self) -> None:
        """Everything that must hold after every step."""
        entries, pending = self.entries()
        for job in self.jobs:
            pipe = self.store.pipeline(transaction=False)
            pipe.hgetall(keys.job(0, job.id))
            pipe.pttl(keys.job(0, job.id))
            pipe.pttl(keys.log(0, job.id))
            for lane in (job.lane, SUSPECT_LANE):
                pipe.zscore(keys.waiting(0, POOL, lane), job.id)
            pipe.zscore(DEADLINES, job.id)
            pipe.zscore(keys.waiting_of(0, POOL, job.lane, job.tenant), job.id)
            pipe.zscore(keys.turns(0, POOL, job.lane), job.tenant)
            pipe.hexists(f"{keys.base(0)}{keys.WAITING_PREFIXES}:{POOL}", job.id)
            (
                raw, job_ttl, log_ttl, in_lane, as_suspect, deadline, of_tenant, turn, prefixes,
            ) = pipe.execute()  # fmt: skip
            now = parse_job(job.id, raw)
            self.check_state(now)
            live, running = now.state in LIVE, now.state is JobState.IN_PROGRESS
            await self.check_log(job.id)
            assert (job.id in self.holder) == running
            if running:
                worker, lease = self.holder[job.id]
                held_by = (worker.name, lease.lease_id, lease.generation)
                assert read_lease(raw[b"lease"])[:3] == held_by
                assert read_lease(raw[b"lease"]).from_seq == self.from_seq[lease.lease_id]
            if b"lease" in raw:
                assert read_lease(raw[b"lease"]).attempts <= MAX_ATTEMPTS
            waits, suspect = now.state is JobState.QUEUED, lane_of(raw) == SUSPECT_LANE
            assert (in_lane is not None) == (waits and not suspect)
            assert (as_suspect is not None) == (waits and suspect)
            assert (of_tenant is not None) == (waits and lane_of(raw) == job.lane)
            assert of_tenant is None or turn is not None, "its turn never comes"
            assert prefixes == (of_tenant is not None and bool(job.prefixes))
            assert (deadline is not None) == (live and job.deadline_s is not None)
            assert (job_ttl > 0) == (log_ttl > 0) == (not live)
            mine = [entry for entry, owner in entries.items() if owner == job.id]
            if live:
                name = lane_of(raw)
                assert mine == [(name, raw[b"entry"])], "one entry per job that is not over"
            # A job that ended while it waited leaves its entry, which a worker reads and drops.
            assert len(mine) == 1 if running else len(mine) <= 1
            assert {entry in pending for entry in mine} <= {running}
        assert pending <= set(entries)
        for worker in self.workers:
            self.check_worker(worker)

    def check_state(self, now: Job) -> None:
        """Assert that the state machine allows the change from the last state to this one."""
        was = self.states[now.id]
        if now.state is not was:
            ways = [t for t in TRANSITIONS.values() if was in t.sources and t.target is now.state]
            assert ways, f"{was} -> {now.state}"
        if now.state is not JobState.IN_PROGRESS:
            self.holder.pop(now.id, None)
        if now.state is JobState.QUEUED:
            self.last[now.id] = None
        self.states[now.id] = now.state

    async def check_log(self, job_id: str) -> None:
        """The answer is what was published under all leases, wherever it is stored."""
        state, published = self.states[job_id], self.published[job_id]
        entries = [Entry(seq, items or (), journal, "") for _, seq, _, journal, items in published]
        if state.terminal:
            entries.append(Entry(len(entries) + 1, (), None, state))
        after = self.random.randint(0, len(entries) + 1)
        last = await self.queue.last_entry(job_id)
        if last is not None and last.end:
            entries[-1] = replace(entries[-1], tokens=last.tokens)
        assert last == (entries[-1] if entries else None)
        assert await log_entries(self.queue, job_id, after) == entries[after:]
        log = self.store.lrange(keys.log(0, job_id), 0, -1)
        stored = [entry for segment in log for entry in parse_segments([segment])]
        assert stored == entries[: len(stored)]
        assert len(stored) == len(entries) or not state.terminal

    def check_worker(self, worker: Worker) -> None:
        """A worker with a valid token holds its jobs and has their current watchers."""
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
            if each.may_send
        ]
        known += [
            (each, each.fence_token, each.watchers)
            for each in worker.inbox
            if not isinstance(each, str)
        ]
        for lease, fence_token, watchers in known:
            if fence_token and fence_token == self.fences[worker.name]:
                assert self.holds(lease), "a worker may write for a job that it has lost"
                assert watchers == self.watchers_of(lease.id)[0]
        for run in worker.runs.values():
            if run.may_send and run.fence_token and run.fence_token == self.fences[worker.name]:
                watchers, watched = self.watchers_of(run.job.id)
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

    async def end_all_jobs(self) -> None:
        """Without further losses: the workers end their jobs, a new worker ends the rest."""
        self.no_losses = True
        for worker in self.workers:
            worker.receive()
            while worker.batch is not None:
                await self.send(worker)
            await self.renew(worker)
            ending = [run for run in worker.runs.values() if run.may_send]
            if ending:
                worker.pack([(run, answer()) for run in ending], lambda: False)
            while worker.batch is not None:
                await self.send(worker)
            await self.check()
        left = {job_id: lease for job_id, (_, lease) in self.holder.items()}
        expected = {
            job_id: self.state_without_worker(lease, False) for job_id, lease in left.items()
        }
        assert await self.queue.release(left.values(), "drained", blame=False) == expected
        while leases := await claim(self.queue, worker="w-3"):  # suspects come one by one
            for lease in leases:
                seq = len(self.published[lease.id]) + 1
                assert await finish(self.queue, lease, seq, answer()) == "ok"


@pytest.fixture
def control(store: Redis) -> Iterator[ChannelSubscriber]:
    """Only the first worker is subscribed; no job is assigned to the second one's slots."""
    subscriber = ChannelSubscriber(store, keys.control_channel(WORKERS[0]))
    yield subscriber
    subscriber.close()


@pytest.fixture
def gateways(store: Redis) -> Iterator[dict[str, ChannelSubscriber]]:
    subscribers = {name: ChannelSubscriber(store, keys.tokens_channel(name)) for name in GATEWAYS}
    yield subscribers
    for subscriber in subscribers.values():
        subscriber.close()


@pytest.mark.seeds(10)
async def test_random_interleavings_keep_every_invariant(
    queue: JobQueue,
    store: Redis,
    control: ChannelSubscriber,
    gateways: dict[str, ChannelSubscriber],
    seed: int,
) -> None:
    fleet = Fleet(queue, store, control, gateways, seed)
    actors = fleet.actors()
    await fleet.submit()
    for _ in range(ACTS):
        (act,) = fleet.random.choices(list(actors), list(actors.values()))
        await act()
        await fleet.check()
    await fleet.end_all_jobs()
    assert fleet.entries() == ({}, set())
    fleet_over = [await queue.get(job.id) for job in fleet.jobs]
    assert all(job is not None and job.state.terminal for job in fleet_over)

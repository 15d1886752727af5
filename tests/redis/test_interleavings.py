"""Two workers, a canceller, an expirer, a reaper and a repairer on a few jobs, in random order.

After every step what Redis holds is compared with what the steps so far allow. The number in a
failing test's name is its seed: the same test makes the same steps again.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator

import pytest
from redis import Redis

from shared import keys
from shared.job import Job, LeasedJob, NewJob, parse_job
from shared.lanes import CLIENT_LANES, LANES
from shared.queue import JobQueue, make_emission
from shared.states import TRANSITIONS, JobEvent, JobState
from shared.token_log import NO_CHUNKS, pack_chunks, parse_entries
from tests.redis.conftest import (
    LEASE_S,
    MAX_ATTEMPTS,
    POOL,
    TENANT,
    Listener,
    answer,
    finish,
    grow_old,
    has_group,
    make_job,
    repair,
    take,
)

SEEDS = range(40)
STEPS = 80
MOST_JOBS = 5
WORKERS = ("w-1", "w-2")
LIVE = {JobState.QUEUED, JobState.IN_PROGRESS}
DEADLINES = keys.base(0) + keys.DEADLINES


class Fleet:
    """The actors, and what they know: every lease that was ever given, and whose it is now."""

    def __init__(self, queue: JobQueue, store: Redis, listeners: list[Listener], seed: int) -> None:
        self.queue = queue
        self.store = store
        self.random = random.Random(seed)
        self.jobs: list[NewJob] = []
        self.states: dict[str, JobState] = {}
        self.leases: list[LeasedJob] = []
        self.holder: dict[str, str] = {}
        """The nonce that may write, per job in progress."""
        self.said: dict[str, int] = {}
        """How many entries each nonce has written."""
        self.listeners = listeners
        """What the workers hear."""
        self.watched: set[str] = set()
        """Jobs whose answer somebody sees grow."""
        # Every other fleet has workers that bring hardly anything to an end.
        self.feeble = bool(seed % 2)

    # --- the actors ---

    async def submit(self) -> None:
        if len(self.jobs) == MOST_JOBS:
            return
        job = make_job(
            lane=self.random.choice(CLIENT_LANES),
            stream=self.random.random() < 0.5,
            deadline_s=self.random.choice([None, 600.0]),
            gateway=self.random.choice(["", "gw-1"]),
        )
        nobody_waits = JobState.QUEUED not in self.states.values()
        await self.queue.submit(job, 100)
        self.jobs.append(job)
        self.states[job.id] = JobState.QUEUED
        handed = [lease for listener in self.listeners for lease in listener.handed(self.queue)]
        assert [lease.id for lease in handed] in ([], [job.id])
        assert not handed or nobody_waits, "a job has overtaken those that wait"
        self.given(handed)

    async def acquire(self) -> None:
        count, offer = self.random.randint(0, 3), self.random.randint(0, 4)
        got = await take(self.queue, count, worker=self.random.choice(WORKERS), offer=offer)
        assert len(got) <= count
        self.given(got)

    def given(self, leases: list[LeasedJob]) -> None:
        """A worker has got jobs."""
        for lease in leases:
            assert self.states[lease.id] is JobState.QUEUED, f"{lease.id} was given away"
            assert lease.nonce not in self.said, "a nonce was given twice"
            self.leases.append(lease)
            self.holder[lease.id] = lease.nonce
            self.said[lease.nonce] = 0

    async def emit(self) -> None:
        """A step of one worker: several jobs at once, lost ones and repetitions among them."""
        chosen = {lease.id: lease for lease in self.some_leases(3)}.values()
        step, lost = [], set()
        for lease in chosen:
            again = self.said[lease.nonce] > 0 and self.random.random() < 0.3
            seq = self.said[lease.nonce] + (not again)
            chunks = pack_chunks([lease.nonce.encode()]) if lease.stream else NO_CHUNKS
            step.append(make_emission(lease, seq, chunks, lease.nonce.encode()))
            if self.holds(lease):
                self.said[lease.nonce] = seq
            else:
                lost.add(lease.id)
        if step:
            assert set(await self.queue.emit(0, step)) == lost

    async def finish(self) -> None:
        for lease in self.some_leases(1):
            held, before = self.holds(lease), self.dump(lease.id)
            seq, chunks, journal = self.said[lease.nonce] + 1, b"", b""
            if self.random.random() < 0.5:  # its last output goes with it
                chunks, journal = NO_CHUNKS, lease.nonce.encode()
            event = self.random.choice([JobEvent.COMPLETE, JobEvent.FAIL])
            end = make_emission(lease, seq, chunks, journal, answer(event=event))
            lost = await self.queue.emit(0, [end])
            if held:
                assert lost == {}
                ended = self.dump(lease.id)
                assert await self.queue.emit(0, [end]) == {}  # the reply was lost
                assert self.dump(lease.id) == ended
            else:
                assert self.dump(lease.id) == before, "a stale nonce has ended a job"

    async def renew(self) -> None:
        chosen = list({lease.id: lease for lease in self.some_leases(3)}.values())
        worker = self.random.choice(WORKERS)
        lost = await self.queue.renew(worker, chosen)
        assert set(lost) == {lease.id for lease in chosen if not self.holds(lease)}

    async def release(self) -> None:
        chosen = {lease.id: lease for lease in self.some_leases(2)}.values()
        blame = self.random.random() < 0.5
        expected = {x.id: self.without_worker(x, blame) for x in chosen if self.holds(x)}
        assert await self.queue.release(chosen, "why", blame=blame) == expected

    async def fall_silent(self) -> None:
        for lease in self.some_leases(1):
            if self.holds(lease):
                grow_old(self.store, lease)

    async def reap(self) -> None:
        held = {lease.id: lease for lease in self.leases if self.holds(lease)}
        expected = {name: self.without_worker(held[name], True) for name in self.silent()}
        assert await self.queue.reap(0, LEASE_S) == expected

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
        if self.said[lease.nonce] and (lease.stream or lease.id in self.watched):
            return "failed"
        attempts = int(self.store.hget(keys.job(0, lease.id), "attempts"))
        return "failed" if blame and attempts >= MAX_ATTEMPTS else "queued"

    async def cancel(self) -> None:
        for job in self.some_jobs():
            state = await self.queue.cancel(job.id, TENANT)
            was = self.states[job.id]
            assert state is (JobState.CANCELLED if was in LIVE else was)

    async def pass_deadline(self) -> None:
        for job in self.some_jobs():
            if job.deadline_s and self.states[job.id] in LIVE:
                self.store.zadd(DEADLINES, {job.id: 1})
                self.store.hset(keys.job(0, job.id), "deadline_us", 1)

    async def expire(self) -> None:
        await self.queue.scripts.expire(0, 1)

    async def watch(self) -> None:
        for job in self.some_jobs():
            gateway, sees = self.random.choice(["gw-1", "gw-2"]), self.random.random() < 0.5
            await self.queue.watch(job.id, gateway, sees=sees)
            if sees and self.states[job.id] in LIVE:
                self.watched.add(job.id)

    async def repair(self) -> None:
        """Nothing is broken here, so there is nothing to do."""
        assert await repair(self.queue) == {}

    def actors(self) -> dict[Callable[[], Awaitable[None]], int]:
        """Who may act, and how often."""
        return {
            self.submit: 3,
            self.acquire: 5,
            self.emit: 1 if self.feeble else 6,
            self.finish: 0 if self.feeble else 2,
            self.renew: 1,
            self.release: 2,
            self.fall_silent: 3,
            self.reap: 3,
            self.cancel: 0 if self.feeble else 1,
            self.pass_deadline: 1,
            self.expire: 1,
            self.watch: 1,
            self.repair: 1,
        }

    def some_leases(self, most: int) -> list[LeasedJob]:
        return self.random.sample(self.leases, min(most, len(self.leases)))

    def some_jobs(self) -> list[NewJob]:
        return self.random.sample(self.jobs, min(1, len(self.jobs)))

    def holds(self, lease: LeasedJob) -> bool:
        return self.holder.get(lease.id) == lease.nonce

    # --- the checks ---

    def dump(self, job_id: str) -> list[bytes | None]:
        return [self.store.dump(key(0, job_id)) for key in (keys.job, keys.log, keys.lease)]

    def check(self) -> None:
        """Everything that must hold after every step."""
        entries, pending = self.entries()
        for job in self.jobs:
            pipe = self.store.pipeline()
            pipe.hgetall(keys.job(0, job.id))
            pipe.lrange(keys.log(0, job.id), 0, -1)
            pipe.get(keys.lease(0, job.id))
            pipe.pttl(keys.job(0, job.id))
            pipe.pttl(keys.log(0, job.id))
            pipe.zscore(keys.waiting(0, POOL, job.lane), job.id)
            pipe.zscore(DEADLINES, job.id)
            raw, log, lease, job_ttl, log_ttl, waits, deadline = pipe.execute()
            now = parse_job(job.id, raw)
            self.check_state(now)
            live, running = now.state in LIVE, now.state is JobState.IN_PROGRESS
            self.check_log(now, log)
            assert (lease is not None) == running
            assert not running or lease[:16].decode() == raw[b"nonce"].decode()
            assert int(raw[b"attempts"]) <= MAX_ATTEMPTS
            assert (waits is not None) == (now.state is JobState.QUEUED)
            assert (deadline is not None) == (live and job.deadline_s is not None)
            assert (job_ttl > 0) == (log_ttl > 0) == (not live)
            mine = [entry for entry, owner in entries.items() if owner == job.id]
            if live:
                name = raw[b"queue"].decode().split(":")[1]
                assert mine == [(name, raw[b"entry"])], "one entry per job that is not over"
            # A job that ended while it waited leaves its entry to be met and dropped by a worker.
            assert len(mine) == 1 if running else len(mine) <= 1
            assert {entry in pending for entry in mine} <= {running}
        assert pending <= set(entries)

    def check_state(self, now: Job) -> None:
        """The step led from the last state to this one by an event that the state machine has."""
        was = self.states[now.id]
        if now.state is not was:
            ways = [t for t in TRANSITIONS.values() if was in t.sources and t.target is now.state]
            assert ways, f"{was} -> {now.state}"
        if now.state is not JobState.IN_PROGRESS:
            self.holder.pop(now.id, None)
        self.states[now.id] = now.state

    def check_log(self, now: Job, raw: list[bytes]) -> None:
        log = parse_entries(raw, 0)
        assert not any(entry.lost for entry in log)
        ends = [now.state.value] if now.state.terminal else []
        assert [entry.end for entry in log if entry.end] == ends
        assert all(not entry.end for entry in log[:-1])
        writers = {entry.journal.decode() for entry in log if not entry.end}
        assert len(writers) <= 1, "two workers have written one answer"
        if nonce := self.holder.get(now.id):
            assert writers <= {nonce}
            assert len(log) == self.said[nonce]

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
        """One healthy worker does what is left."""
        for job_id, nonce in list(self.holder.items()):
            lease = next(each for each in self.leases if each.nonce == nonce)
            assert await finish(self.queue, lease, self.said[nonce] + 1, answer()) == "ok", job_id
        for lease in await take(self.queue):
            assert await finish(self.queue, lease, 1, answer()) == "ok"


@pytest.fixture
def listeners(store: Redis) -> Iterator[list[Listener]]:
    """The first worker is there; what the second one offers, nobody may have."""
    listener = Listener(store, keys.control_channel(WORKERS[0]))
    yield [listener]
    listener.close()


@pytest.mark.parametrize("seed", SEEDS)
async def test_whatever_happens_every_promise_holds(
    queue: JobQueue, store: Redis, listeners: list[Listener], seed: int
) -> None:
    fleet = Fleet(queue, store, listeners, seed)
    actors = fleet.actors()
    await fleet.submit()
    for _ in range(STEPS):
        (act,) = fleet.random.choices(list(actors), list(actors.values()))
        await act()
        fleet.check()
    await fleet.bring_to_an_end()
    assert fleet.entries() == ({}, set())
    assert set(fleet.holder) <= set(fleet.states)
    fleet_over = [await queue.get(job.id) for job in fleet.jobs]
    assert all(job is not None and job.state.terminal for job in fleet_over)

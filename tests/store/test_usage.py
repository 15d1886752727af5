"""The ledger of use: each job once, whatever ends it, and the sums that are made of it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import UTC, datetime

import pytest
from redis import Redis

from gateway.maintenance.usage_counter import UsageCounter
from shared.job.job import NewJob, new_job_id_in
from shared.job.log import START, EventName, make_journal, prompt_tokens_in, tokens_in
from shared.job.states import JobState
from shared.store import keys
from shared.store.ended import Ended, EndedStreams, Owner, Reader
from shared.store.queue import HeldJob, Queue
from shared.store.usage import OTHER, UsageRecords, UsageSums
from shared.tenants.rate_limits import estimate
from tests.store.conftest import (
    TENANT,
    claim,
    claim_one,
    emit_entry,
    emit_token,
    finish,
    lease,
    lose_worker,
    make_answer,
    make_job,
    open_queue,
    pass_deadline,
    submit,
)

KEPT_DAYS = 400
CUT_SHORT = {JobState.CANCELLED, JobState.EXPIRED, JobState.FAILED}
KEY = "key_0123456789abcdef01234567"
OWNER = Owner(TENANT, KEY, "m")


async def ledger(queue: Queue, shard: int = 0) -> list[Ended]:
    """What a shard has not been added up of."""
    streams = EndedStreams(queue, Reader.USAGE)
    return await streams.read(shard, (await streams.positions()).get(shard, ""), 1000)


async def only_entry(queue: Queue) -> Ended:
    (entry,) = await ledger(queue)
    return entry


async def add_up(queue: Queue) -> None:
    await UsageCounter(queue, KEPT_DAYS).run()


async def sums(queue: Queue, tenant: str = "") -> dict[Owner, UsageSums]:
    """Of this month: a test that runs at midnight finds its jobs on two days."""
    today = datetime.now(UTC).date()
    found: dict[Owner, UsageSums] = {}
    async for part in UsageRecords(queue).rows(today.replace(day=1), today, tenant):
        for row in part:
            found[row.owner] = found.get(row.owner, UsageSums()).plus(row.sums)
    return found


async def emit_prompt(queue: Queue, job: HeldJob, tokens: int) -> None:
    """The first entry of a job: its prompt, and one token."""
    journal = make_journal([(0, tokens), (0, 0, [1], "x")])
    assert not (await emit_entry(queue, job, journal, [b"x"])).refused


async def test_each_end_is_added_once(queue: Queue) -> None:
    completed = await lease(queue, key="key_1")
    assert await finish(queue, completed, make_answer(cached_tokens=1)) == "ok"
    waiting = await submit(queue, key="key_1")
    await queue.cancel(TENANT, waiting.id)
    running = await lease(queue, key="key_1")
    await emit_token(queue, running)
    await queue.give_back([running], "handed_over", "drain")
    again = await claim_one(queue, worker="w-2")
    await emit_token(queue, again)
    await queue.cancel(TENANT, running.id)
    await queue.delete(running.id)
    await emit_token(queue, again)  # by a worker that does not know of it yet
    for _ in range(2):
        await add_up(queue)
    ((owner, found),) = (await sums(queue)).items()
    assert owner == Owner(TENANT, "key_1", "m")
    assert found[:8] == (3, 1, 0, 2, 0, 2, 1, 5)
    assert found.uncounted == 0
    backlog = await UsageRecords(queue).backlog()
    assert (backlog.entries, backlog.oldest_s, backlog.added, backlog.dropped) == (0, 0.0, 3, 0)


async def test_attempts_are_added_up_and_those_without_output_are_wasted(
    queue: Queue, server: Redis
) -> None:
    job = await lease(queue)
    await lose_worker(queue, server)
    again = await claim_one(queue, worker="w-2")
    await emit_prompt(queue, again, 5)
    await queue.give_back([again], "handed_over", "drain")
    last = await claim_one(queue, worker="w-3")
    assert await finish(queue, last, make_answer()) == "ok"
    found = UsageSums.of(await only_entry(queue))
    first, second, third = (await queue.get(job.id))[0].attempts  # type: ignore[union-attr]
    assert first.ended_at is not None
    assert found.wasted_us == round(1e6 * (first.ended_at - first.started_at))
    assert found.engine_us == pytest.approx(
        sum(1e6 * ((each.ended_at or 0) - each.started_at) for each in (first, second, third)),
        abs=5,
    )
    created = (await queue.get(job.id))[0].created_at  # type: ignore[union-attr]
    assert found.queue_us == pytest.approx(1e6 * (first.started_at - created), abs=5)


async def test_a_job_out_of_attempts_counts_each_of_them_once(queue: Queue, server: Redis) -> None:
    job = await lease(queue, max_attempts=1)
    await lose_worker(queue, server)
    entry = await only_entry(queue)
    (attempt,) = (await queue.get(job.id))[0].attempts  # type: ignore[union-attr]
    assert attempt.ended_at
    spent = round(1e6 * (attempt.ended_at - attempt.started_at))
    assert (entry.state, entry.engine_us, entry.wasted_us) == (JobState.FAILED, spent, spent)


async def test_a_job_that_is_deleted_at_once_is_counted(queue: Queue, server: Redis) -> None:
    job = await lease(queue)
    await emit_prompt(queue, job, 7)
    await queue.cancel(TENANT, job.id)
    await queue.delete(job.id)
    assert 0 < server.pttl(keys.log(0, job.id)) <= 60_000
    await add_up(queue)
    (found,) = (await sums(queue)).values()
    assert (found.prompt_tokens, found.output_tokens, found.uncounted) == (7, 1, 0)


async def test_a_job_whose_log_is_gone_is_uncounted(queue: Queue, server: Redis) -> None:
    job = await lease(queue)
    await emit_prompt(queue, job, 7)
    await queue.cancel(TENANT, job.id)
    server.delete(keys.log(0, job.id))
    await add_up(queue)
    (found,) = (await sums(queue)).values()
    assert (found.jobs, found.prompt_tokens, found.uncounted) == (1, 0, 1)


async def test_an_entry_is_added_once_by_processes_that_are_killed_or_many(
    queue: Queue, server: Redis
) -> None:
    records = UsageRecords(queue)
    for _ in range(3):
        assert await finish(queue, await lease(queue, key=KEY), make_answer()) == "ok"
    entries = await ledger(queue)
    assert await records.add(0, "", entries[:2], KEPT_DAYS)
    # Killed before they were deleted; and a slower process has read them, too.
    assert server.xlen(keys.ended(0)) == 3
    assert not await records.add(0, "", entries, KEPT_DAYS)
    assert (await sums(queue))[OWNER].jobs == 2
    backlog = await records.backlog()
    assert (backlog.added, backlog.dropped) == (2, 0)
    assert backlog.oldest_s >= 0
    await asyncio.gather(*(add_up(queue) for _ in range(4)))
    assert (await sums(queue))[OWNER][:8] == (3, 3, 0, 0, 0, 6, 0, 9)
    assert (await records.backlog())[0::2] == (0, 3)
    (used,) = await records.used(["t:" + TENANT], datetime.now(UTC).timestamp())
    assert used == (15, 15)


async def test_sums_of_all_shards_are_one(redis_url: str) -> None:
    async with open_queue(redis_url, shards=3) as queue:
        for shard in (0, 1, 1, 2):
            await submit(queue, id=new_job_id_in(shard), key=KEY)
            (job,) = await claim(queue, shard=shard)
            assert await finish(queue, job, make_answer()) == "ok"
        await add_up(queue)
        await add_up(queue)
        assert (await sums(queue))[OWNER].jobs == 4
        assert {*(await EndedStreams(queue, Reader.USAGE).positions())} == {0, 1, 2}


async def test_a_tenant_with_too_many_rows_has_one_for_the_rest(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.store.usage.MOST_ROWS", 2)
    for key in ("a", "b", "c", "d", "a"):
        assert await finish(queue, await lease(queue, key=key), make_answer()) == "ok"
        await add_up(queue)
    assert {owner.key: each.jobs for owner, each in (await sums(queue)).items()} == {
        "a": 2,
        "b": 1,
        OTHER: 2,
    }
    assert await sums(queue, "another") == {}
    assert len(await sums(queue, TENANT)) == 3


async def tokens_in_log(queue: Queue, job: NewJob) -> tuple[int, int]:
    entries = await queue.read(job.id, START, 10_000)
    prompt = sum(prompt_tokens_in(each.journal) for each in entries)
    output = sum(tokens_in(each.journal) for each in entries)
    events = {each.event for each in entries}
    if EventName.CLAIMED in events and events & CUT_SHORT and not prompt + output:
        prompt = estimate(len(job.body), 0, 0)  # which an engine may have computed
    return prompt, output


class Play:
    """Random ends, hand-backs and losses of jobs of several tenants, keys and models."""

    def __init__(self, queue: Queue, server: Redis, seed: int) -> None:
        self.queue, self.server, self.random = queue, server, random.Random(seed)
        self.jobs: dict[str, NewJob] = {}
        self.logs: Counter[tuple[Owner, str]] = Counter()
        self.prompts: dict[str, int] = {}
        self.held: dict[str, HeldJob] = {}

    async def submit(self) -> None:
        owner = Owner(*(self.random.choice(each) for each in ("ab", ("", KEY), ("m", "n"))))
        made = make_job(
            id=new_job_id_in(0), tenant=owner.tenant, key=owner.key, model=owner.model,
            deadline_s=60, stream=self.random.random() < 0.7,
        )  # fmt: skip
        self.jobs[made.id] = await submit(self.queue, **made._asdict())

    async def step(self) -> None:
        for job in await claim(self.queue, self.random.randrange(3)):
            self.held[job.id] = job
        job_id = self.random.choice([*self.jobs])
        job = self.held.get(job_id)
        match self.random.randrange(7):
            case 0:
                await self.queue.cancel(self.jobs[job_id].tenant, job_id)
            case 1 if self.random.random() < 0.3:
                await pass_deadline(self.queue, self.server, job_id)
            case 2 if job:
                await self.queue.give_back([job], "handed_over", "drain")
            case 3 if job:
                tokens = await tokens_in_log(self.queue, self.jobs[job_id])
                done = make_answer(prompt_tokens=tokens[0], completion_tokens=tokens[1])
                await finish(self.queue, job, done)
            case _ if job:
                records = [(0, 0, [1, 2], "xy")]
                if len(await self.queue.read(job_id, START, 2)) == 1:
                    records = [*records, (0, 5)]  # type: ignore[list-item]
                items = [b"x"] if job.stream else None
                if not (await emit_entry(self.queue, job, make_journal(records), items)).refused:
                    return
            case _:
                return
        self.held.pop(job_id, None)

    async def end(self) -> None:
        for job_id, job in self.jobs.items():
            await self.queue.cancel(job.tenant, job_id)
            owner = Owner(job.tenant, job.key, job.model)
            prompt, output = await tokens_in_log(self.queue, job)
            self.logs.update({(owner, "jobs"): 1, (owner, "in"): prompt, (owner, "out"): output})
            if self.random.random() < 0.3:
                await self.queue.delete(job_id)


@pytest.mark.seeds(2)
async def test_the_sums_are_those_of_the_logs(queue: Queue, server: Redis, seed: int) -> None:
    play = Play(queue, server, seed)
    for _ in range(12):
        await play.submit()
    for number in range(120):
        await play.step()
        if number % 30 == 0:
            await add_up(queue)
    await play.end()
    await add_up(queue)
    found: Counter[tuple[Owner, str]] = Counter()
    for owner, each in (await sums(queue)).items():
        found.update(
            {(owner, "jobs"): each.jobs, (owner, "in"): each.prompt_tokens,
             (owner, "out"): each.output_tokens}
        )  # fmt: skip
        assert each.uncounted == 0
        assert sum(each[1:5]) == each.jobs
    assert +found == +play.logs
    assert sum(n for (_, what), n in found.items() if what == "out") > 0
    names = [f"t:{tenant}" for tenant in "ab"]
    used = await UsageRecords(queue).used(names, datetime.now(UTC).timestamp())
    assert sum(each.tokens_this_month for each in used) == sum(
        n for (_, what), n in found.items() if what != "jobs"
    )

"""The job queue: every change of a job is one call of a script, fenced where a worker makes it.

Gateways submit, watch and cancel; workers acquire, emit, renew and release. A method packs the
arguments of its script and parses the reply; the larger ones do so in `scripts/`. Questions about
many jobs at once are in shared/store/views.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import Future
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from shared.job.advertised_slots import SlotUpdate, advertiser
from shared.job.fair_shares import EXPECTED_COST, NOTHING, Account, ShareRules
from shared.job.job import LeasedJob, NewJob, checked_shard, shard_of
from shared.job.lanes import LANES
from shared.job.packing import pack
from shared.job.placement import PlacementRules
from shared.job.replies import Acquired, Fenced, NextTurn, Renewal, SubmitReply
from shared.job.result import piece_field
from shared.job.states import JobState
from shared.platform.tasks import run_together
from shared.store.interface import Store, StoreUnavailable
from shared.store.redis import keys
from shared.store.redis.job_reader import JobReader
from shared.store.redis.scripts.acquire import pack_acquire, parse_acquired
from shared.store.redis.scripts.emit import Step, pack_emit, parse_emit
from shared.store.redis.scripts.next_turn import pack_next_turn, parse_next_turn
from shared.store.redis.scripts.renew import held_pairs, pack_renew, parse_renewal
from shared.store.redis.scripts.runner import job_states
from shared.store.redis.scripts.submit import pack_submit, parse_submit

# An idle worker asks for work every few seconds; this is far longer than any pause of a live one.
_DEAD_CONSUMER_S = 600.0
_MOST_ENDED = 1_000_000
"""Entries of what has ended in a shard, about 130 bytes each, where no maintenance process reads
them."""
_LARGE_BYTES = 1 << 20
"""A job with a larger body is packed in a thread, in 50 ms and more."""


class JobQueue(JobReader, Store):
    """All queues of a fleet. What has no docstring here has one in Store."""

    share_rules = ShareRules()
    placement = PlacementRules()

    def losses(self, shard: int) -> int:
        return self.scripts(shard).connection.losses

    # --- the gateway's side ---

    async def submit_all(
        self,
        shard: int,
        jobs: Sequence[NewJob],
        max_depth: int,
        owner: tuple[str, int] | None = None,
    ) -> list[SubmitReply]:
        arguments = pack_submit(jobs, max_depth, self.quotas, self.share_rules.lift, owner)
        reply = await self.run("submit", shard, arguments)
        if owner and not reply:
            raise Fenced(f"another process owns {owner[0]}")
        return parse_submit(jobs, reply)

    def start_submit(self, shard: int, jobs: Sequence[NewJob], max_depth: int) -> Future[Any]:
        if len(jobs) == 1 and len(jobs[0].body) > _LARGE_BYTES:
            return asyncio.ensure_future(self._submit_large(shard, jobs, max_depth))
        arguments = pack_submit(jobs, max_depth, self.quotas, self.share_rules.lift)
        return self.scripts(shard).start("submit", shard, arguments)

    async def _submit_large(self, shard: int, jobs: Sequence[NewJob], max_depth: int) -> Any:
        arguments = await asyncio.to_thread(
            pack_submit, jobs, max_depth, self.quotas, self.share_rules.lift
        )
        return await self.scripts(shard).start("submit", shard, arguments)

    parse_submit = staticmethod(parse_submit)

    async def cancel(self, job_id: str, tenant: str) -> JobState | None:
        shard = shard_of(job_id)
        state = shard is not None and await self.run("cancel", shard, (job_id, tenant))
        return JobState(state.decode()) if state else None

    async def delete(self, *job_ids: str) -> None:
        by_shard: dict[int, list[str]] = {}
        for job_id in job_ids:
            by_shard.setdefault(checked_shard(job_id), []).append(job_id)
        await run_together(*(self.run("delete", *each) for each in by_shard.items()))

    async def watch(self, job_id: str, gateway: str, *, follow: bool) -> None:
        await self.run("watch", checked_shard(job_id), (job_id, gateway, int(follow)))

    async def unwatch(self, job_id: str, gateway: str) -> None:
        await self.run("unwatch", checked_shard(job_id), (job_id, gateway))

    async def take_out_input(self, job_id: str, head_bytes: int, later: str) -> None:
        """Take a completed response's input out of its record: that of the job `later` begins with
        it. `head_bytes`: the bytes of the job's body before the input."""
        shard = checked_shard(later)
        ttl_ms = await self.servers.of(shard).pttl(keys.job(shard, later))
        arguments = (job_id, head_bytes, "", later, b"[]", ttl_ms)
        await self.run("replace_input", checked_shard(job_id), arguments)

    async def put_back_input(self, job_id: str, head_bytes: int, later: str, given: bytes) -> None:
        """The job `later` is deleted; `given`: the input as JSON."""
        arguments = (job_id, head_bytes, later, "", given, "")
        await self.run("replace_input", checked_shard(job_id), arguments)

    # --- the worker's side ---

    async def acquire(
        self,
        shard: int,
        worker: str,
        count: int,
        lease_s: float,
        slots: SlotUpdate,
        expected_cost: float = EXPECTED_COST,
    ) -> Acquired:
        rules = self.share_rules
        arguments = pack_acquire(
            worker, count, lease_s, slots, rules, self.placement, expected_cost, NOTHING
        )
        return parse_acquired(await self.run("acquire", shard, arguments))

    async def emit(
        self,
        shard: int,
        worker: str,
        fence_token: str,
        step: Step,
        *,
        repeated: bool = False,
        slots: SlotUpdate | None = None,
    ) -> dict[str, str]:
        scripts = self.scripts(shard)
        await scripts.ready()
        arguments = pack_emit(worker, fence_token, step, slots, repeated=repeated)
        # With a new connection the fencing token is over, so this does not connect.
        return parse_emit(await scripts.start_on_open_connection("emit", shard, arguments))

    def start_emit(
        self, shard: int, worker: str, fence_token: str, step: Step, slots: SlotUpdate | None
    ) -> Future[Any]:
        arguments = pack_emit(worker, fence_token, step, slots)
        return self.scripts(shard).start_on_open_connection("emit", shard, arguments)

    parse_emit = staticmethod(parse_emit)

    async def store_piece(self, job: LeasedJob, number: int, piece: bytes) -> bool:
        arguments = (job.id, job.lease_id, piece_field(number), piece)
        return bool(await self.run("store_piece", job.shard, arguments))

    async def withdraw_slots(self, pool: str, worker: str, lease_s: float) -> None:
        """The worker advertises no slots any more."""
        pipeline = self.servers.pipeline()
        for shard in range(self.shards):
            pipeline.of(shard).zrem(keys.advertised(shard, pool), advertiser(worker, lease_s))
        await pipeline.execute()

    async def renew(
        self,
        shard: int,
        worker: str,
        fence_token: str,
        lease_s: float,
        jobs: Iterable[LeasedJob],
        charges: Mapping[Account, float] = NOTHING,
    ) -> Renewal:
        arguments = pack_renew(worker, fence_token, lease_s, jobs, self.share_rules, charges)
        return parse_renewal(await self.run("renew", shard, arguments))

    async def reject_unreceived(
        self, pool: str, worker: str, received: Iterable[str], older_than_s: float
    ) -> dict[str, str]:
        states: dict[str, str] = {}
        arguments = (pool, worker, pack(list(received)), int(older_than_s * 1000), *LANES)
        for shard in range(self.shards):
            with contextlib.suppress(StoreUnavailable):
                states |= job_states(await self.run("reject_unreceived", shard, arguments))
        return states

    async def next_turn(
        self, shard: int, pool: str, accounts: Collection[Account], yielding: str = ""
    ) -> NextTurn | None:
        arguments = pack_next_turn(pool, accounts, self.share_rules, yielding)
        return parse_next_turn(pool, accounts, await self.run("next_turn", shard, arguments))

    async def release(
        self, jobs: Iterable[LeasedJob], reason: str, *, blame: bool, in_turn: bool = False
    ) -> dict[str, str]:
        by_shard: dict[int, list[LeasedJob]] = {}
        for job in jobs:
            by_shard.setdefault(job.shard, []).append(job)
        calls = [
            self.run("release", shard, (reason, int(blame), int(in_turn), *held_pairs(held)))
            for shard, held in by_shard.items()
        ]
        states: dict[str, str] = {}
        for reply in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(reply, BaseException):
                raise reply
            states |= job_states(reply)
        return states

    async def restart(self, job: LeasedJob, reason: str, code: str = "worker_lost") -> str:
        arguments = (job.id, job.lease_id, reason, code)
        state: bytes | None = await self.run("restart", job.shard, arguments)
        return (state or b"").decode()

    # --- maintenance ---

    async def expire(self, shard: int, limit: int = 100) -> tuple[int, dict[str, str]]:
        due, *states = await self.run("expire", shard, (limit,))
        return due, job_states(states)

    async def reap(
        self,
        shard: int,
        lease_s: float,
        limit: int = 100,
        *,
        longest_pause_s: float | None = None,
    ) -> dict[str, str]:
        pause_ms = "" if longest_pause_s is None else int(longest_pause_s * 1000)
        arguments = (int(lease_s * 1000), limit, pause_ms, *LANES)
        return job_states(await self.run("reap", shard, arguments))

    async def reclaim(
        self, shard: int, worker: str, limit: int = 100, *, heartbeat: str = ""
    ) -> dict[str, str]:
        """Take the jobs of a worker whose connection to the shard's server is gone, or which still
        has the heartbeat channel `heartbeat`; at most `limit` of each queue.

        Nothing is taken if it has a connection again, or another heartbeat. Returns the jobs' new
        states.
        """
        channel = heartbeat and keys.channel_at(shard, heartbeat)
        arguments = (worker, channel, limit, *LANES)
        return job_states(await self.run("reclaim", shard, arguments))

    async def sweep(
        self,
        shard: int,
        limit: int = 100,
        *,
        dead_consumer_s: float = _DEAD_CONSUMER_S,
        most_ended: int = _MOST_ENDED,
    ) -> int:
        """Remove expired jobs, at most `limit`, from the index, dead workers from the consumer
        groups: those without jobs that were silent for so long, of what has ended the entries above
        `most_ended`, and queues of adapters without jobs and free slots.

        Returns how many jobs and conversations were looked at: with `limit` there may be more.
        """
        arguments = (limit, int(dead_consumer_s * 1000), most_ended, *LANES)
        return int(await self.run("sweep", shard, arguments))

    async def check(self, shard: int, limit: int = 100) -> dict[str, str]:
        """Look at so many unfinished jobs, behind those of the call before; requeue what waits and
        is in no line, or runs and is held by no worker. Returns the new states of these jobs.

        Those whose gateways are gone are cancelled later (`expire`), unless they are watched again.
        """
        return job_states(await self.run("check", shard, (limit, *LANES)))

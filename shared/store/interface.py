"""What a store of jobs must do: a queue with lanes, leases and fences, and a log of tokens per job.

Its one implementation is `shared/store/redis`. Values of `shared/job` go in and come out.
"""

from __future__ import annotations

from asyncio import Future, Lock
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from shared.job.advertised_slots import SlotUpdate
from shared.job.fair_shares import Account
from shared.job.job import Job, LeasedJob, NewJob
from shared.job.job_log import Entry
from shared.job.replies import Acquired, LogPart, NextTurn, Renewal, SubmitReply
from shared.job.states import JobState


class StoreError(Exception):
    """The store could not carry out a call."""


class StoreUnavailable(StoreError):
    """A server can't be reached now; it may have carried out the call."""


class StoreTimeout(StoreUnavailable):
    """A server does not answer."""


class StoreRefused(StoreError):
    """A server has answered with an error."""


class StoreUnwritable(StoreRefused):
    """A server refuses writes for now: its memory or its disk is full, it loads its data, or it is
    a replica."""


TRANSIENT = (StoreUnavailable, StoreUnwritable)
"""After these the same call may succeed later."""


class Store(Protocol):
    """The jobs of a fleet, in shards; a job's id names its shard.

    A method that changes jobs does so in one step for each shard: others see all of it or nothing.
    What a worker writes is fenced: it counts only while the worker holds the job under the lease id
    and the fencing token that it presents. Methods raise StoreError; after a TRANSIENT one the same
    call may be made again.
    """

    shards: int

    def reading_log(self, shard: int) -> Lock:
        """For answers.py: one part of one log of a server at a time."""

    def losses(self, shard: int) -> int:
        """How often the connection to the shard's server was lost: what a worker knew of its jobs
        before the last time may be wrong."""

    # --- the gateway's side ---

    async def submit_all(
        self,
        shard: int,
        jobs: Sequence[NewJob],
        max_depth: int,
        owner: tuple[str, int] | None = ...,
    ) -> list[SubmitReply]:
        """Queue jobs of one shard, or lease them to workers that advertise slots.

        A job that is there already is left as it is. `max_depth`: jobs that may wait in a lane.
        `owner`: the batch whose lines they are, and its owner's epoch; raises Fenced if that is
        over, and nothing has happened then.
        """

    def start_submit(self, shard: int, jobs: Sequence[NewJob], max_depth: int) -> Future[Any]:
        """`submit_all` without a coroutine: it is sent now; the result is for `parse_submit`."""

    @staticmethod
    def parse_submit(jobs: Sequence[NewJob], reply: Sequence[Any]) -> list[SubmitReply]:
        """What `submit_all` would return."""

    async def get(self, job_id: str) -> Job | None:
        """The job, of whatever tenant; the request's body is not read. None if there is none."""

    async def stored_request(self, job_id: str) -> tuple[bytes, str]:
        """The body of the job's HTTP request, empty if there is no such job; of a stored response
        also where its input is (`StoredResponse.up_to`)."""

    async def read_log(
        self, job_id: str, after: int, most_bytes: int | None = ..., most_parsed: float = ...
    ) -> LogPart:
        """The job's log behind entry number `after`; with `most_bytes` perhaps not all of it.

        `most_parsed`: the entries are left out if their segments have more bytes.
        """

    async def last_entry(self, job_id: str) -> Entry | None:
        """The log's last entry; None if it is empty."""

    async def read_piece(self, job_id: str, number: int) -> bytes | None:
        """A piece of the stored answer; None if it is not there."""

    async def ended(self, shard: int, job_ids: Iterable[str]) -> dict[str, str]:
        """Those of the shard's jobs that have ended: id -> state, `gone` if there is no record."""

    async def watch(self, job_id: str, gateway: str, *, follow: bool) -> None:
        """Send the job's frames to this gateway from now on.

        `follow`: its client is shown the answer as it grows, so the job can't be started anew when
        its worker is lost.
        """

    async def unwatch(self, job_id: str, gateway: str) -> None:
        """The gateway has no client any more that follows the job.

        If no other gateway has one, the job is cancelled after its `keep_s`.
        """

    async def cancel(self, job_id: str, tenant: str) -> JobState | None:
        """The state after the attempt; None if the tenant has no such job."""

    async def delete(self, *job_ids: str) -> None:
        """Delete the records and the logs of jobs that have ended, before they expire."""

    # --- the worker's side ---

    async def acquire(
        self,
        shard: int,
        worker: str,
        count: int,
        lease_s: float,
        slots: SlotUpdate,
        expected_cost: float = ...,
    ) -> Acquired:
        """Lease at most `count` jobs of the pool `slots.pool`, best lane first.

        Where several tenants wait in a lane, the one with the lowest level comes first, and is
        charged `expected_cost` for each job, over its weight (shared/job/fair_shares.py).

        The leases end unless they are renewed. `slots`: the worker's free slots, `count` included.
        Those that no waiting job takes are advertised: `submit_all` leases jobs to them and sends
        these on the worker's control channel.
        """

    async def renew(
        self,
        shard: int,
        worker: str,
        fence_token: str,
        lease_s: float,
        jobs: Iterable[LeasedJob],
        charges: Mapping[Account, float] = ...,
    ) -> Renewal:
        """Renew the leases of all jobs that the worker holds in the shard.

        `charges` are added to the levels of their tenants.
        """

    async def emit(
        self,
        shard: int,
        worker: str,
        fence_token: str,
        step: Any,
        *,
        repeated: bool = ...,
        slots: SlotUpdate | None = ...,
    ) -> dict[str, str]:
        """Store and publish one engine step; returns the results that came too late: id -> state.

        `step`: of `make_step`. `repeated`: the call may have been made before. `slots`: what the
        worker advertises, if that has changed. Raises Fenced if the fencing token is not valid any
        more; then nothing has happened. Does not connect: with a new connection the token is over.
        """

    def start_emit(
        self, shard: int, worker: str, fence_token: str, step: Any, slots: SlotUpdate | None
    ) -> Future[Any]:
        """`emit` without a coroutine: it is sent now; the result is for `parse_emit`."""

    @staticmethod
    def parse_emit(reply: Any) -> dict[str, str]:
        """What `emit` would return."""

    async def store_piece(self, job: LeasedJob, number: int, piece: bytes) -> bool:
        """Store a piece of the job's answer, before its end; False if the worker has lost it."""

    async def reject_unreceived(
        self, pool: str, worker: str, received: Iterable[str], older_than_s: float
    ) -> dict[str, str]:
        """Give up jobs that were leased to this worker so long ago and are not among `received`.

        For after a lost connection, on which messages to the worker may have been lost. Returns the
        new states. Where a server is away the leases run out.
        """

    async def next_turn(
        self, shard: int, pool: str, accounts: Collection[Account], yielding: str = ...
    ) -> NextTurn | None:
        """Whose turn it is in the pool's best lane with waiting jobs; None: no one's.

        `yielding`: the full worker that asks, if it has jobs of the lane flex: for a while it is
        told on its control channel of jobs of other lanes that have to wait.
        """

    async def release(
        self, jobs: Iterable[LeasedJob], reason: str, *, blame: bool, in_turn: bool = ...
    ) -> dict[str, str]:
        """Give up jobs; returns their new states. `blame` counts the attempt against each.

        They are the next ones of their pool; `in_turn`: the first ones of their tenants, instead.
        Jobs of the shards that can be reached are given up before an error is raised.
        """

    async def restart(self, job: LeasedJob, reason: str, code: str = ...) -> str:
        """Give up a job whose log the engine can't continue.

        Returns its new state: it is queued, with an empty log, or it has failed, as a client may
        have seen what was generated, with the error `code` or `log_lost`. Empty if the worker had
        lost the job already.
        """

    # --- maintenance ---

    async def expire(self, shard: int, limit: int = ...) -> tuple[int, dict[str, str]]:
        """End at most `limit` jobs whose deadline has passed, and as many that no gateway has
        watched for too long. Returns how many of either were due, and the jobs' new states."""

    async def reap(
        self, shard: int, lease_s: float, limit: int = ..., *, longest_pause_s: float | None = ...
    ) -> dict[str, str]:
        """Take the jobs of workers that have been silent for this long, and for their own lease.

        At most `limit` of each queue. `longest_pause_s`: the longest time between two calls; after
        a longer one the store stood still, and leases count from this call on. Returns the jobs'
        new states.
        """

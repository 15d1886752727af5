"""The queues that one worker claims from: its pool's own, and one for each LoRA adapter."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

from shared.job.job import LeasedJob
from shared.store.redis.job_queue import JobQueue
from shared.store.views import with_waiting_jobs
from worker.core.adapter_turns import QueuesSnapshot, Turns, turns


class AdapterQueues:
    """Decides from which queues to claim, and counts what was claimed from each.

    `places` is how many adapters the engine can run at once, `runs` holds the ids of the
    worker's jobs.
    """

    def __init__(self, queue: JobQueue, pool: str, places: int, runs: Collection[str]) -> None:
        self.names: tuple[str, ...] = ()
        """The adapter queues. While there are some the worker advertises no slots: a job that is
        leased as it is submitted would go before those that wait in another queue."""
        self._queue = queue
        self._pool = pool
        self._places = places
        self._runs = runs
        self._taken: dict[str, str] = {}  # ids of running jobs -> their adapter queue
        self._since: dict[str, float] = {}  # adapter queue -> when jobs of it began to run
        self._served: dict[str, int] = {}
        self._claims = 0

    def set_names(self, names: Iterable[str]) -> bool:
        """Claim from these adapter queues from now on; whether that is a change."""
        before, self.names = self.names, tuple(sorted(names))
        kept = {self._pool, *self.names}
        self._served = {queue: n for queue, n in self._served.items() if queue in kept}
        return self.names != before

    async def next_turns(self, shards: Iterable[int]) -> Turns:
        """From which queues to claim jobs of these shards now. Raises StoreError."""
        waiting = await with_waiting_jobs(self._queue, self.names, shards)
        now = time.monotonic()
        running = self._running()
        self._since = {queue: self._since.get(queue, now) for queue in running}
        return turns(
            QueuesSnapshot(
                pool=self._pool,
                adapters=self.names,
                waiting=waiting,
                running_s={queue: now - since for queue, since in self._since.items()},
                served=self._served,
                places=self._places,
            )
        )

    def claimed(self, queue: str, jobs: Iterable[LeasedJob]) -> None:
        """These jobs were claimed from a queue, and will be among the worker's runs at once."""
        self._claims += 1
        self._served[queue] = self._claims
        if queue != self._pool:
            self._taken |= dict.fromkeys((job.id for job in jobs), queue)

    def is_running(self, queue: str) -> bool:
        """Whether jobs of this adapter queue were running at the last decision."""
        return queue in self._since

    def _running(self) -> set[str]:
        self._taken = {job: queue for job, queue in self._taken.items() if job in self._runs}
        return set(self._taken.values())

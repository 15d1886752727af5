"""Which workers were lost: they ended without leaving the registry. Pure: heartbeats in.

A worker that ends in order deletes its entry. One that was killed leaves the entry to expire, and
it has no lease any more (shared/store/views.py). One that ends because of a
failure, of its engine for example, leaves an entry with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from shared.fleet.registry import EXPIRY_S, LOADING_EXPIRY_S, Heartbeat, WorkerInfo
from shared.job.states import WorkerState

KEPT_S = 600.0
"""A lost worker is forgotten after this time, or when its pool has as many workers again."""
_SHOWN_S = 5.0
"""A loss is shown for so long at least, also where a supervisor starts the worker again at once."""
_SLACK_S = 0.5


class LostWorker(NamedTuple):
    """A worker that was lost, as it last announced itself."""

    worker: WorkerInfo
    since_s: float
    """Unix seconds by Redis' clock."""
    serving: int
    """How many workers its pool had with it."""


class WorkerLosses:
    """Remembers the lost workers of a fleet. All times are Unix seconds by Redis' clock."""

    def __init__(self) -> None:
        self.lost: dict[str, LostWorker] = {}
        self._known: dict[str, tuple[WorkerInfo, float]] = {}  # and when it announced itself
        self._gone: dict[str, float] = {}  # and when its connection was found to be lost
        self._over: set[str] = set()  # workers that are gone, and whose loss is not shown any more
        self._serving: Counter[str] = Counter()

    @property
    def ended(self) -> frozenset[str]:
        """Workers that have ended although their entries have not expired yet."""
        return frozenset(self._gone)

    def gone(self, worker_id: str, now_s: float) -> None:
        """The worker has no connection to a Redis server any more: it ended, or reconnects."""
        self._gone[worker_id] = now_s

    def update(self, heartbeats: Sequence[Heartbeat], now_s: float) -> None:
        """The registry's entries at `now_s`."""
        present = {each.worker.id for each in heartbeats}
        for worker_id in self._known.keys() - present:
            self._entry_gone(worker_id, now_s)
        for worker, age_s in heartbeats:
            self._entry_seen(worker, now_s - age_s)
        for worker_id in self._gone.keys() - present:
            del self._gone[worker_id]
        serving = Counter(
            worker.pool
            for worker, _ in heartbeats
            if worker.state.serving and worker.id not in self._gone
        )
        for worker_id, each in list(self.lost.items()):
            passed_s = now_s - each.since_s
            replaced = serving[each.worker.pool] >= each.serving and passed_s > _SHOWN_S
            if replaced or passed_s > KEPT_S:
                del self.lost[worker_id]
                self._over.add(worker_id)
        self._over &= self._gone.keys()
        self._serving = serving

    def _entry_gone(self, worker_id: str, now_s: float) -> None:
        worker, announced_s = self._known.pop(worker_id)
        self._gone.pop(worker_id, None)
        expiry_s = LOADING_EXPIRY_S if worker.state is WorkerState.STARTING else EXPIRY_S
        if now_s - announced_s >= expiry_s - _SLACK_S:  # else it has deleted its entry itself
            self._lose(worker, announced_s, expired=True)

    def _entry_seen(self, worker: WorkerInfo, announced_s: float) -> None:
        self._known[worker.id] = worker, announced_s
        if worker.failure:
            self._gone[worker.id] = announced_s
            if (loss := self.lost.get(worker.id)) is not None:  # found by its lost connection
                self.lost[worker.id] = loss._replace(worker=worker)
        gone_s = self._gone.get(worker.id)
        if gone_s is not None and announced_s > gone_s:
            del self._gone[worker.id]  # it is connected again
            gone_s = None
        if gone_s is not None:
            self._lose(worker, gone_s)
        elif worker.id in self.lost and announced_s > self.lost[worker.id].since_s:
            del self.lost[worker.id]

    def _lose(self, worker: WorkerInfo, since_s: float, *, expired: bool = False) -> None:
        known = worker.id in self.lost or worker.id in self._over
        # One that drains closes its connections in the end, and deletes its entry.
        drained = worker.state is WorkerState.DRAINING and not (worker.failure or expired)
        if not drained and not known:
            serving = max(1, self._serving[worker.pool])
            self.lost[worker.id] = LostWorker(worker, since_s, serving)

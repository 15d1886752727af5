"""One table of limits: from which value on something is a problem, and what to do then. Pure.

The overview (with it the page, `flotilla status` and `flotilla doctor`), the autoscaler and
gateways read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from shared.fleet.registry import HEARTBEAT_S


class Level(StrEnum):
    """How bad something is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Limit:
    """From `warning` or `problem` on, a value has that level. None: never.

    Values are seconds, shares of 1 or counts, as the text says.
    """

    name: str
    warning: float | None = None
    problem: float | None = None
    text: str = ""
    """What is wrong, for people; in braces the words that the overview puts in."""
    do: str = ""
    """What to do first."""

    def level(self, value: float) -> Level:
        """How bad a value is."""
        if self.problem is not None and value >= self.problem:
            return Level.PROBLEM
        if self.warning is not None and value >= self.warning:
            return Level.WARNING
        return Level.OK

    @property
    def lowest(self) -> float:
        """The value from which on it is a problem at all."""
        return min(value for value in (self.warning, self.problem) if value is not None)


# --- Redis and gateways ---

REDIS_UNAVAILABLE = Limit(
    "redis_unavailable", problem=1,
    text="Redis can't be read: {why}. New requests are refused; the figures are old.",
    do="Start Redis, or set FLOTILLA_REDIS_URL to one that accepts writes.",
)  # fmt: skip
REDIS_EVICTS = Limit(
    "redis_evicts", problem=1,
    text="Redis may delete jobs: {why}.", do="Set maxmemory-policy to noeviction in Redis.",
)  # fmt: skip
REDIS_MEMORY = Limit(
    "redis_memory", 0.7, 0.8,
    text="A Redis server uses {share:.0%} of its memory; soon no new jobs are accepted.",
    do="Raise its maxmemory, or shorten FLOTILLA_RESULT_TTL_S.",
)  # fmt: skip
REDIS_FULL = Limit(
    "redis_full", problem=1,
    text="New jobs of tenants that keep most are refused, and batches wait: {why}.",
    do="Raise its maxmemory, or wait until results have expired; add workers if many jobs wait.",
)  # fmt: skip
GATEWAY_TASKS = Limit(
    "gateway_tasks", problem=1,
    text="This gateway is not healthy: {why}.", do="Restart this gateway; its log has the error.",
)  # fmt: skip
GATEWAY_FORMAT = Limit(
    "gateway_format", problem=1, text="This gateway is not healthy: {why}.",
    do="Run gateways, workers and maintenance of one release, or use an empty Redis.",
)  # fmt: skip
GATEWAY_RELAY = Limit(
    "gateway_relay", problem=1,
    do="Check that the gateway reaches Redis' pub/sub, and its log for the reason.",
)  # fmt: skip
GATEWAY_FLEET = Limit(
    "gateway_fleet", problem=5 * HEARTBEAT_S,
    text="This gateway is not healthy: {why}.",
    do="Check the connection between the gateway and Redis.",
)  # fmt: skip
CLOCK = Limit(
    "clock", 2, text="this machine and the fleet differ by {seconds:.0f} s",
    do="Synchronise the clocks (NTP); deadlines are counted by Redis' clock.",
)  # fmt: skip

# --- pools ---

INTAKE_STOPPED = Limit(
    "intake_stopped", warning=1, do="Resume it: `flotilla queue resume {pool}`.",
    text="An operator has stopped the intake of the pool {pool}: new requests get 503.",
)  # fmt: skip
POOL_PAUSED = Limit(
    "pool_paused", warning=1, do="Resume it: `flotilla queue resume {pool}`.",
    text="An operator has paused the pool {pool}; {waiting}.",
)  # fmt: skip
NO_WORKER = Limit(
    "no_worker", problem=1,
    text="In the pool {pool} {why}; {waiting}, the oldest for {wait}.",
    do="Start a worker of the pool; the log of one that is starting shows how far it is.",
)  # fmt: skip
LONG_WAIT = Limit(
    "long_wait", 30, 60,
    text="The oldest job of the pool {pool} has waited {wait}: {waiting}, {busy} of {slots} slots "
    "are busy.{estimate}{limit}",
    do="Add workers, or raise the autoscaler's maximum; move what can wait to the lane flex.",
)  # fmt: skip
"""Of a job that does not wait in the lane flex."""
QUEUE_FULL = Limit(
    "queue_full", 0.8, 1,
    text="The lane {lane} of the pool {pool} has {jobs} of {most} jobs; when it is full, new "
    "requests get 503.",
    do="Add workers, or raise FLOTILLA_MAX_QUEUE_DEPTH if Redis has memory to spare.",
)  # fmt: skip
AUTOSCALER_SILENT = Limit(
    "autoscaler_silent", 10,
    text="The autoscaler has decided nothing for {silent} for the pool {pool}.",
    do="See the log of the maintenance process, and restart it.",
)  # fmt: skip
"""A tick may take that long where Redis or an actuator is slow."""

# --- files, batches, webhooks ---

STORAGE_UNAVAILABLE = Limit(
    "storage_unavailable", problem=1, text="No file can be stored: {why}",
    do="Gateways and maintenance need the same FLOTILLA_STORAGE_URL, and have to be able to write "
    "there.",
)  # fmt: skip
STORAGE_FULL = Limit(
    "storage_full", 0.9, 0.98,
    text="The disk of the storage is {share:.0%} full; {free} GiB are free.",
    do="Make room, or delete files: `flotilla files ls`, `flotilla files rm`.",
)  # fmt: skip
STORAGE_NOT_SWEPT = Limit(
    "storage_not_swept", 1800,
    text="Maintenance runs, but {age} it has not used the storage of the gateways.",
    do="Give maintenance the gateways' FLOTILLA_STORAGE_URL; its log has the reason.",
)  # fmt: skip
"""Since maintenance has deleted what has expired."""
BATCHES_LATE = Limit(
    "batches_late", problem=60,
    text="{age} no maintenance process has worked on batches; {batches} not ended.",
    do="Start `flotilla maintenance` with the gateways' FLOTILLA_STORAGE_URL, or see its log.",
)  # fmt: skip
BATCH_STUCK = Limit(
    "batch_stuck", 1800,
    text="{batch} has not advanced for {age}, though workers serve its model.",
    do="See the log of maintenance for `pauses`, and the jobs with `lane:flex state:queued`.",
)  # fmt: skip
"""Since an open batch has advanced: since its owner has changed it."""

WEBHOOKS_LATE = Limit(
    "webhooks_late", 60, 600,
    text="{events} for webhooks, the oldest for {age}: no maintenance process takes them.",
    do="Start `flotilla maintenance`, or see its log.",
)  # fmt: skip
"""Since a job or batch has ended that was not read for webhooks."""

USAGE_LATE = Limit(
    "usage_late", 120, 600,
    text="The use of {jobs} is in no sum yet, the oldest for {age}: no maintenance process adds it "
    "up.",
    do="Start `flotilla maintenance`, or see its log.",
)  # fmt: skip
"""Since a job that is not in the sums has ended."""

# --- workers ---

WORKER_LOST = Limit(
    "worker_lost", problem=1,
    text="The worker {worker} was lost {ago} ago{why}. Its jobs{had} went back to the queue; "
    "{waiting} now.",
    do="Start it again, or let its supervisor do it.",
)  # fmt: skip
WORKER_SILENT = Limit(
    "worker_silent", problem=3 * HEARTBEAT_S,
    text="The worker {worker} has not announced itself for {age}: its process or its machine "
    "stands still. Its jobs move to other workers when their leases end.",
    do="Look at its machine; end it if it does not go on.",
)  # fmt: skip
WORKER_LOADS_LONG = Limit(
    "worker_loads_long", 1200,
    text="The worker {worker} has loaded its model for {age}.", do="Its log shows how far it is.",
)  # fmt: skip

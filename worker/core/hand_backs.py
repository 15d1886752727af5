"""A full worker hands running jobs back for a tenant that is far behind, or for a better lane.

Jobs of the lane flex make room for other lanes at once, whatever they have generated; all else is
bounded, in each second and for each job.

A job that is handed back keeps its log and waits for its tenant's next turn; whichever worker
claims it then continues the answer where it stopped. `worker/core/claimer.py` asks, and claims.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from shared.job.fair_shares import Account
from shared.job.lanes import CLIENT_LANES, FLEX
from shared.job.replies import NextTurn
from worker.core.charges import Charges
from worker.core.job_run import JobRun
from worker.core.membership import Membership
from worker.core.releases import Releases
from worker.core.runs import Runs
from worker.core.slots import SlotAccounting

LEAST_TOKENS: Final = 32
"""That an attempt has generated before its job is handed back: each time the prompt and all tokens
are computed again."""
MOST_LEASES: Final = 2
"""Of a job that is handed back; one that has had more stays where it is."""
_GAP_JOBS: Final = 2
"""So many jobs of mean cost a tenant must be behind."""
_FIXED_TOKENS: Final = 100
"""What a hand-back costs beside the tokens that are computed again, as so many of them."""
_LOOKS: Final = 8
"""In the time of one hand-back."""
_FLEX_LOOK_S: Final = 0.025
"""Between two looks for a job that takes the slot of one of the lane flex, on average."""


def account_of(run: JobRun, pool: str) -> Account:
    """What its job is charged to."""
    return Account(pool, run.job.share.lane, run.job.tenant)


def candidates(runs: Iterable[JobRun], shard: int) -> list[JobRun]:
    """The runs of a shard whose jobs may be handed back."""
    return [
        run
        for run in runs
        if run.job.shard == shard
        and run.job.share.lane in CLIENT_LANES
        and not run.job.has_deadline
        and run.buffer.movable
        and not (run.buffer.discarded or run.final_state)
    ]


def _yields_at_once(run: JobRun, lane: str) -> bool:
    """Whether a job makes room for this lane without the bounds of other hand-backs."""
    return run.job.share.lane == FLEX != lane


def choose(
    runs: Collection[JobRun], turn: NextTurn, gap: float, *, flex_only: bool = False
) -> list[JobRun]:
    """Which of the runs make room: of the lane flex, one for each job that waits in a better lane;
    else one, for the job whose turn it is.

    Jobs of worse lanes do, of the worst first; else those of tenants in the same lane whose level
    is more than `gap` above. Of these it is the one whose tenant is furthest ahead for each token
    that must be computed again. `flex_only`: no other hand-back is due.
    """
    pool, lane = turn.account.pool, turn.account.lane
    found: list[tuple[int, float, JobRun]] = []
    for run in runs:
        account, buffer = account_of(run, pool), run.buffer
        if not _yields_at_once(run, lane) and (
            flex_only or buffer.new_tokens < LEAST_TOKENS or run.job.generation > MOST_LEASES
        ):
            continue
        worse = CLIENT_LANES.index(account.lane) - CLIENT_LANES.index(lane)
        ahead = turn.levels[account] - (0 if worse else turn.level)
        if worse < 0 or (worse == 0 and ahead <= gap):
            continue
        tokens = buffer.prompt_tokens + buffer.completion_tokens
        found.append((worse, ahead / (tokens + _FIXED_TOKENS), run))
    found.sort(key=lambda each: each[:2], reverse=True)
    ordered = [run for _, _, run in found]
    at_once = [run for run in ordered if _yields_at_once(run, lane)]
    return at_once[: turn.waiting] or ordered[:1]


class HandBacks:
    """The hand-backs of one worker: at most `hand_backs_s` per second (ShareRules)."""

    def __init__(
        self,
        member: Membership,
        runs: Runs,
        slots: SlotAccounting,
        releases: Releases,
        charges: Charges,
    ) -> None:
        self._queue, self._pool, self._worker_id = member.queue, member.pool, member.worker_id
        self._runs = runs
        self._slots = slots
        self._releases = releases
        self._charges = charges
        self._per_s = member.queue.share_rules.hand_backs_s
        self._next_look = self._next_hand_back = self._next_flex_look = 0.0
        self._urgent: set[int] = set()

    def look_at(self, shard: int) -> None:
        """A job has to wait in this shard that one of the lane flex may make room for."""
        if self._per_s:
            self._urgent.add(shard)
            self._slots.changed()

    def next_urgent(self, shards: range) -> int | None:
        """One of these shards that `look_at` was called for; each is returned once."""
        for shard in self._urgent.intersection(shards):
            self._urgent.remove(shard)
            return shard
        return None

    async def find(self, shard: int) -> list[JobRun]:
        """The runs that make room for waiting jobs of the shard. Raises StoreError.

        The worker has no free slot, or its KV cache is full.
        """
        now, flex_only = time.monotonic(), not self._fair_is_due
        self._next_flex_look = now + _FLEX_LOOK_S * random.uniform(0.5, 1.5)
        if not flex_only:
            self._next_look = now + 1 / self._per_s / _LOOKS
        found = candidates(self._runs.values(), shard)
        if flex_only:
            found = [run for run in found if run.job.share.lane == FLEX]
        accounts = list(dict.fromkeys(account_of(run, self._pool) for run in found))
        yields = self._worker_id if any(each.lane == FLEX for each in accounts) else ""
        turn = await self._queue.next_turn(shard, self._pool, accounts, yields) if found else None
        if turn is None or not self._slots.may_claim:
            return []
        # Some may have ended meanwhile.
        left = [run for run in candidates(found, shard) if self._runs.get(run.job.id) is run]
        gap = _GAP_JOBS * self._charges.expected_cost
        chosen = choose(left, turn, gap, flex_only=flex_only)
        if chosen and _yields_at_once(chosen[0], turn.account.lane):
            self._next_flex_look = 0.0  # more may wait
        elif chosen:
            # What a look came late does not make the next one later.
            period = 1 / self._per_s
            self._next_hand_back = max(self._next_hand_back, now - period / 4) + period
        return chosen

    async def hand_back(self, runs: Sequence[JobRun]) -> None:
        """Release the jobs of some runs; their slots are for the jobs that `find` saw waiting."""
        await self._releases.some(runs, "handed_back", in_turn=True)

    @property
    def is_due(self) -> bool:
        """Whether `find` may be called now."""
        if self._per_s == 0 or not self._slots.may_claim:
            return False
        return self._fair_is_due or self.next_flex_look_s == 0

    @property
    def _fair_is_due(self) -> bool:
        return time.monotonic() >= max(self._next_look, self._next_hand_back)

    @property
    def next_flex_look_s(self) -> float | None:
        """In how many seconds jobs of the lane flex may make room; None: there are none, or none
        may be handed back now."""
        if self._per_s == 0 or not self._slots.may_claim:
            return None
        if not any(run.job.share.lane == FLEX for run in self._runs.values()):
            return None
        return max(0.0, self._next_flex_look - time.monotonic())

"""The use of the fleet: what each job's end adds to the ledger, and the sums of a day.

The ledger is written where jobs end (scripts/common/usage.lua); maintenance adds it up. Neither has
any text of requests or answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime
from typing import NamedTuple, Self

from shared.job.states import JobState

OTHER = "(other)"
"""In place of key and model, where a tenant has too many of them in a day."""
MOST_ENTRIES = 1_000_000
"""Of the ledger of a shard, about 120 bytes each: the oldest of what is more are dropped, where no
maintenance process adds them up."""
MOST_ROWS = 2000
"""Of a tenant in a day: what is more is added up under `OTHER`."""


class Owner(NamedTuple):
    """Whose use it is, and of which model: a row of a day."""

    tenant: str
    key: str
    """The id of the API key; empty: it stands in the settings."""
    model: str
    """As the request named it."""


class UsageEntry(NamedTuple):
    """The end of one job."""

    id: str
    """That of the entry in the ledger of its shard."""
    job: str
    owner: Owner
    state: JobState
    prompt_tokens: int | None
    """None: no worker has reported any, they are to be counted in the job's log."""
    cached_tokens: int | None
    output_tokens: int | None
    queue_us: int
    """Until the first start."""
    engine_us: int
    """Of all attempts."""
    wasted_us: int
    """Of attempts that were taken back and have added nothing to the answer."""
    reserved: str
    """The tokens that were taken from token limits for it; empty: none."""

    @property
    def day(self) -> str:
        """The UTC day of its end, by Redis' clock: `2026-11-28`."""
        return day_of(int(self.id.partition("-")[0]) / 1000)

    @property
    def sums(self) -> UsageSums:
        """What it adds to its row. A job without token counts is `uncounted`."""
        known = self.prompt_tokens is not None
        return UsageSums(
            1,
            int(self.state is JobState.COMPLETED),
            int(self.state is JobState.FAILED),
            int(self.state is JobState.CANCELLED),
            int(self.state is JobState.EXPIRED),
            self.prompt_tokens or 0,
            self.cached_tokens or 0,
            self.output_tokens or 0,
            self.queue_us,
            self.engine_us,
            self.wasted_us,
            0 if known else 1,
        )


class UsageSums(NamedTuple):
    """What jobs have used together. Redis keeps it as an array in this order."""

    jobs: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    queue_us: int = 0
    engine_us: int = 0
    wasted_us: int = 0
    uncounted: int = 0
    """Jobs whose log was gone before their tokens were counted."""

    def plus(self, other: Iterable[int]) -> Self:
        """Both together."""
        return type(self)(*(a + b for a, b in zip(self, other, strict=True)))


class UsageRow(NamedTuple):
    """The use of one day."""

    day: str
    owner: Owner
    sums: UsageSums


def rows_of(entries: Iterable[UsageEntry]) -> list[UsageRow]:
    """The entries added up."""
    sums: dict[tuple[str, Owner], UsageSums] = {}
    for entry in entries:
        place = entry.day, entry.owner
        sums[place] = sums.get(place, UsageSums()).plus(entry.sums)
    return [UsageRow(*place, each) for place, each in sums.items()]


def date_of(at_s: float) -> date:
    """The UTC day of a Unix time."""
    return datetime.fromtimestamp(at_s, UTC).date()


def day_of(at_s: float) -> str:
    """The same as text: `2026-11-28`."""
    return date_of(at_s).isoformat()


def month_of(day: str) -> str:
    """The month of a day: `2026-11`."""
    return day[:7]

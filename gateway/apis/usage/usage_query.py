"""A question about the use of some days, and its answer: rows that are added up by some columns."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from typing import NamedTuple

from shared.job.errors import BadRequest
from shared.store.usage import UsageRecords, UsageRow, UsageSums, date_of

MOST_DAYS = 400
MOST_ROWS = 10_000
"""Of an answer."""
_MOST_READ = 100_000
_DEFAULT_DAYS = 30

Groups = tuple[str, ...]
"""The values of a row's columns."""


class UsageQuery(NamedTuple):
    """Which use is asked for. Days are those of UTC, both included."""

    first: date
    last: date
    by: tuple[str, ...]
    """The columns of the answer, of `day`, `tenant`, `key` and `model`."""
    tenant: str
    """Only its use; empty: that of all."""
    key: str
    """Only that of the key with this id; empty: of all."""
    model: str


class UsageAnswer(NamedTuple):
    """What was found."""

    query: UsageQuery
    rows: Sequence[tuple[Groups, UsageSums]]
    """Sorted by their columns."""
    total: UsageSums


def range_of(first: date | None, last: date | None, now_s: float) -> tuple[date, date]:
    """The days that are asked for; without `first` thirty, without `last` up to today.

    Raises BadRequest.
    """
    last = last or date_of(now_s)
    first = first or last - timedelta(days=min(_DEFAULT_DAYS - 1, (last - date.min).days))
    if first > last:
        raise BadRequest("`from` is behind `to`.", "from")
    if (last - first).days >= MOST_DAYS:
        raise BadRequest(f"`from` and `to` are more than {MOST_DAYS} days apart.", "from")
    return first, last


def columns_of(by: str, known: Sequence[str]) -> tuple[str, ...]:
    """The columns that are asked for. Raises BadRequest."""
    columns = tuple(dict.fromkeys(filter(None, (each.strip() for each in by.split(",")))))
    for each in columns:
        if each not in known:
            raise BadRequest(f"`by` takes {', '.join(known)}, not {each[:64]!r}.", "by")
    return columns


async def answer_of(records: UsageRecords, query: UsageQuery) -> UsageAnswer:
    """Add the rows up. Raises BadRequest if there are too many, and StoreError."""
    sums: dict[Groups, UsageSums] = {}
    total, read = UsageSums(), 0
    async for part in records.rows(query.first, query.last, query.tenant):
        read += len(part)
        if read > _MOST_READ:
            raise BadRequest(
                f"More than {_MOST_READ:,} rows are to be read: ask for fewer days, or for one "
                "tenant.",
                "from",
            )
        for row in part:
            if _matches(row, query):
                groups = _groups(row, query.by)
                sums[groups] = sums.get(groups, UsageSums()).plus(row.sums)
                total = total.plus(row.sums)
        if len(sums) > MOST_ROWS:
            raise BadRequest(
                f"The answer has more than {MOST_ROWS:,} rows: ask for fewer days, or for fewer "
                "columns (`by`).",
                "by",
            )
    return UsageAnswer(query, sorted(sums.items()), total)


def _matches(row: UsageRow, query: UsageQuery) -> bool:
    return query.key in ("", row.owner.key) and query.model in ("", row.owner.model)


def _groups(row: UsageRow, by: Sequence[str]) -> Groups:
    return tuple(row.day if each == "day" else getattr(row.owner, each) for each in by)

"""One row of the table of faults, computed from what all clients observed. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from load_tests.faults.checked_call import CheckedCall
from load_tests.harness.spread import percentile
from load_tests.harness.table import Table
from load_tests.oracle.observation import End, Observation

_IN_FLIGHT_S = 0.5
"""Tokens that were sent before a fault may still arrive for this long."""
_MAX_EXAMPLES = 3
"""Wrong answers that are printed below the table."""


@dataclass(frozen=True, slots=True)
class FaultRow:
    """What the clients observed during one fault."""

    title: str
    times: int
    streams: int
    """Accepted streams."""
    complete: int
    """Streams that were complete."""
    broken: dict[str, int]
    """Accepted streams that were not complete, by error code or kind of end."""
    refused: dict[str, int]
    """Streams and jobs that were not accepted, by error code."""
    silence_s: tuple[float, ...]
    """Longest time without a token of each accepted stream: p50, p90, max."""
    jobs: int
    """Accepted jobs."""
    failed: dict[str, int]
    """Accepted jobs that were not completed, by error code."""
    wrong: dict[str, int]
    """Streams and jobs with a wrong answer or record."""
    notified_s: tuple[float, ...]
    """Seconds from a fault until the client of a broken call got an error: p50, max. Calls that
    hung are left out."""
    records_behind: int
    """Failed streams of which the client received more tokens than the record has."""
    leftovers: dict[str, int]
    """What jobs left in Redis."""
    notes: list[str] = field(default_factory=list)


def make_row(
    title: str,
    injected_at: Sequence[float],
    calls: Iterable[CheckedCall],
    leftovers: Mapping[str, int],
    notes: Iterable[str] = (),
) -> FaultRow:
    """Make a row. `injected_at`: when each fault began, on the clock of the observations."""
    calls = list(calls)
    streams = [call.seen for call in calls if call.seen.accepted and not call.is_job]
    jobs = [call.seen for call in calls if call.seen.accepted and call.is_job]
    broken, failed = ([seen for seen in group if not seen.complete] for group in (streams, jobs))
    wrong = [call for call in calls if call.errors]
    delays = [
        notified_after(injected_at, seen) for seen in (*broken, *failed) if seen.end is not End.HUNG
    ]
    known = [seconds for seconds in delays if seconds is not None]
    silences = [seen.silence_s for seen in streams]
    gone = sum(call.seen.accepted and not call.has_record for call in calls)
    return FaultRow(
        title=title,
        times=len(injected_at),
        streams=len(streams),
        complete=len(streams) - len(broken),
        broken=_counted(broken),
        refused=_counted(call.seen for call in calls if not call.seen.accepted),
        silence_s=tuple(percentile(silences, share) for share in (0.5, 0.9, 1.0)),
        jobs=len(jobs),
        failed=_counted(failed),
        wrong=dict(Counter("jobs" if call.is_job else "streams" for call in wrong)),
        notified_s=tuple(percentile(known, share) for share in (0.5, 1.0)),
        records_behind=sum(call.record_behind for call in calls),
        leftovers=dict(leftovers),
        notes=[
            *notes,
            *([f"{gone} jobs have no record"] if gone else []),
            *map(str, wrong[:_MAX_EXAMPLES]),
        ],
    )


def notified_after(injected_at: Sequence[float], seen: Observation) -> float | None:
    """Return the seconds from the fault that broke a call to its end; None without such a fault.

    The first fault after the last token broke it (or up to 0.5 s before, as tokens may have been
    in flight); if there is none, the last fault before the last token.
    """
    last = seen.at[-1] if seen.at else seen.began
    before = [at for at in injected_at if at <= seen.ended]
    after_token = [at for at in before if at >= last - _IN_FLIGHT_S]
    causes = after_token[:1] or before[-1:]
    return seen.ended - causes[0] if causes else None


def fault_table(rows: Sequence[FaultRow]) -> Table:
    """Return the table with a row per fault."""
    columns = {
        "fault, times": [f"{row.title}, {row.times}" for row in rows],
        "streams": [str(row.streams) for row in rows],
        "complete": [str(row.complete) for row in rows],
        "cut or failed": [_codes(row.broken) for row in rows],
        "refused": [_codes(row.refused) for row in rows],
        "longest silence\np50 / p90 / max s": [_seconds(row.silence_s) for row in rows],
        "jobs": [str(row.jobs) for row in rows],
        "failed": [_codes(row.failed) for row in rows],
        "wrong": [_codes(row.wrong) for row in rows],
        "record\nbehind": [str(row.records_behind) for row in rows],
        "error after\np50 / max s": [_seconds(row.notified_s) for row in rows],
        "left over": [_codes(row.leftovers) for row in rows],
    }
    return Table.of_columns("What clients observed during each fault", columns)


def _counted(seen: Iterable[Observation]) -> dict[str, int]:
    return dict(Counter(each.reason for each in seen).most_common())


def _codes(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {code}" for code, count in counts.items()) or "0"


def _seconds(values: Sequence[float]) -> str:
    if any(map(math.isnan, values)):
        return "-"
    return " / ".join(f"{value:.2f}" for value in values)

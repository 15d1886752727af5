"""One row of the table of faults, computed from the outcomes of all clients. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from load_tests.faults.call_outcome import CallOutcome
from load_tests.harness.table import Table

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
    silence_s: tuple[float, float, float]
    """Longest time without a token of each accepted stream: p50, p90, max."""
    jobs: int
    """Accepted jobs."""
    failed: dict[str, int]
    """Accepted jobs that were not completed, by error code."""
    wrong: dict[str, int]
    """Streams and jobs with a wrong answer or record, by kind of error."""
    notified_s: tuple[float, float]
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
    outcomes: Iterable[CallOutcome],
    leftovers: Mapping[str, int],
    notes: Iterable[str] = (),
) -> FaultRow:
    """Make a row. `injected_at`: when each fault began, on the clock of the outcomes."""
    outcomes = list(outcomes)
    streams = [o for o in outcomes if o.accepted and not o.is_job]
    jobs = [o for o in outcomes if o.accepted and o.is_job]
    broken = [o for o in streams if not o.complete]
    failed = [o for o in jobs if not o.complete]
    wrong = [o for o in outcomes if o.errors]
    delays = [notified_after(injected_at, o) for o in (*broken, *failed) if not o.hung]
    known = [seconds for seconds in delays if seconds is not None]
    examples = [f"{o.request.tag}: {'; '.join(o.errors)}" for o in wrong[:_MAX_EXAMPLES]]
    return FaultRow(
        title=title,
        times=len(injected_at),
        streams=len(streams),
        complete=sum(o.complete for o in streams),
        broken=_counted(broken),
        refused=_counted(o for o in outcomes if not o.accepted),
        silence_s=(
            percentile([o.longest_silence_s for o in streams], 0.5),
            percentile([o.longest_silence_s for o in streams], 0.9),
            percentile([o.longest_silence_s for o in streams], 1.0),
        ),
        jobs=len(jobs),
        failed=_counted(failed),
        wrong=dict(Counter(error_kind(o) for o in wrong)),
        notified_s=(percentile(known, 0.5), percentile(known, 1.0)),
        records_behind=sum(o.record_behind > 0 for o in outcomes),
        leftovers=dict(leftovers),
        notes=[*notes, *examples],
    )


def error_kind(outcome: CallOutcome) -> str:
    """Return what kind of error a wrong outcome has, and whether it is a job or a stream."""
    first = outcome.errors[0].split(" ")[0].rstrip(",")
    kind = "record" if first.isdecimal() or first in ("record", "complete", "the") else first
    return f"{kind} ({'job' if outcome.is_job else 'stream'})"


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile (nearest rank; `share` is 0 to 1); NaN of no values."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def notified_after(injected_at: Sequence[float], outcome: CallOutcome) -> float | None:
    """Return the seconds from the fault that broke a call to its end; None without such a fault.

    The first fault after the last token broke it (or up to 0.5 s before, as tokens may have been
    in flight); if there is none, the last fault before the last token.
    """
    before = [at for at in injected_at if at <= outcome.ended]
    after_token = [at for at in before if at >= outcome.last_token - _IN_FLIGHT_S]
    causes = after_token[:1] or before[-1:]
    return outcome.ended - causes[0] if causes else None


def fault_table(rows: Sequence[FaultRow]) -> Table:
    """Return the table with a row per fault."""
    head = [
        "fault, times",
        "streams",
        "complete",
        "cut or failed",
        "refused",
        "longest silence\np50 / p90 / max s",
        "jobs",
        "failed",
        "wrong",
        "record\nbehind",
        "error after\np50 / max s",
        "left over",
    ]
    cells = [
        [
            f"{row.title}, {row.times}",
            str(row.streams),
            str(row.complete),
            _codes(row.broken),
            _codes(row.refused),
            _seconds(row.silence_s),
            str(row.jobs),
            _codes(row.failed),
            _codes(row.wrong),
            str(row.records_behind),
            _seconds(row.notified_s),
            _codes(row.leftovers),
        ]
        for row in rows
    ]
    return Table("What clients observed during each fault", head, cells)


def _counted(outcomes: Iterable[CallOutcome]) -> dict[str, int]:
    return dict(Counter(outcome.reason for outcome in outcomes).most_common())


def _codes(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {code}" for code, count in counts.items()) or "0"


def _seconds(values: Sequence[float]) -> str:
    if any(map(math.isnan, values)):
        return "-"
    return " / ".join(f"{value:.2f}" for value in values)

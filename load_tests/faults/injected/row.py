"""One row of the table of faults: from the outcomes of all clients to figures. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from load_tests.bench.report import Table
from load_tests.faults.outcome import End, Outcome

_ON_THEIR_WAY_S = 0.5
"""So long after a fault tokens may still come."""
_SHOWN = 3
"""Examples of wrong answers that a row shows."""


@dataclass(frozen=True, slots=True)
class Row:
    """What the clients of one fault saw."""

    title: str
    times: int
    streams: int
    """Those that were accepted."""
    whole: int
    broken: dict[str, int]
    """Streams that were accepted and are not whole, by code or kind of end."""
    refused: dict[str, int]
    """Streams and jobs that were not accepted, by code."""
    silence_s: tuple[float, float, float]
    """The longest of each accepted stream: p50, p90, max."""
    jobs: int
    failed: dict[str, int]
    """Jobs that were accepted and not completed, by code."""
    wrong: dict[str, int]
    """Streams and jobs with a wrong answer or record, by what is wrong (without numbers)."""
    told_s: tuple[float, float]
    """Of what broke or failed, without those that hung: time from the fault until the client knew.
    p50, max."""
    records_behind: int
    """Streams that failed, of which the client got more than the record has."""
    left: dict[str, int]
    notes: list[str] = field(default_factory=list)


def make_row(
    title: str,
    strikes: Sequence[float],
    outcomes: Iterable[Outcome],
    left: Mapping[str, int],
    notes: Iterable[str] = (),
) -> Row:
    """`strikes`: when each fault began, on the clock of the outcomes."""
    outcomes = list(outcomes)
    streams = [o for o in outcomes if o.accepted and not o.is_job]
    jobs = [o for o in outcomes if o.accepted and o.is_job]
    broken = [o for o in streams if not o.whole]
    failed = [o for o in jobs if not o.whole]
    wrong = [o for o in outcomes if o.differences]
    told = [told_after(strikes, o) for o in (*broken, *failed) if o.end is not End.HUNG]
    known = [seconds for seconds in told if seconds is not None]
    examples = [f"{o.question.tag}: {'; '.join(o.differences)}" for o in wrong[:_SHOWN]]
    return Row(
        title=title,
        times=len(strikes),
        streams=len(streams),
        whole=sum(o.whole for o in streams),
        broken=_counted(broken),
        refused=_counted(o for o in outcomes if o.end is End.REFUSED),
        silence_s=(
            percentile([o.longest_silence_s for o in streams], 0.5),
            percentile([o.longest_silence_s for o in streams], 0.9),
            percentile([o.longest_silence_s for o in streams], 1.0),
        ),
        jobs=len(jobs),
        failed=_counted(failed),
        wrong=dict(Counter(kind_of(o) for o in wrong)),
        told_s=(percentile(known, 0.5), percentile(known, 1.0)),
        records_behind=sum(o.record_behind > 0 for o in outcomes),
        left=dict(left),
        notes=[*notes, *examples],
    )


def kind_of(outcome: Outcome) -> str:
    """The first word of what is wrong with it, and whether it was a job."""
    first = outcome.differences[0].split(" ")[0].rstrip(",")
    kind = "record" if first.isdecimal() or first in ("record", "whole", "the") else first
    return f"{kind} ({'job' if outcome.is_job else 'stream'})"


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that so many are not above; NaN of none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def told_after(strikes: Sequence[float], outcome: Outcome) -> float | None:
    """Time from the fault that broke it until its client knew; None if there was no fault before.

    That is a fault a moment before its last token (some were on their way), else the first one
    after it, else the last one before it.
    """
    before = [strike for strike in strikes if strike <= outcome.ended]
    after_token = [strike for strike in before if strike >= outcome.last_token - _ON_THEIR_WAY_S]
    causes = after_token[:1] or before[-1:]
    return outcome.ended - causes[0] if causes else None


def table(rows: Sequence[Row]) -> Table:
    """What the command prints."""
    head = [
        "fault, times",
        "streams",
        "whole",
        "cut or failed",
        "refused",
        "longest silence\np50 / p90 / max s",
        "jobs",
        "failed",
        "wrong",
        "record\nbehind",
        "told after\np50 / max s",
        "left over",
    ]
    cells = [
        [
            f"{row.title}, {row.times}",
            str(row.streams),
            str(row.whole),
            _codes(row.broken),
            _codes(row.refused),
            _seconds(row.silence_s),
            str(row.jobs),
            _codes(row.failed),
            _codes(row.wrong),
            str(row.records_behind),
            _seconds(row.told_s),
            _codes(row.left),
        ]
        for row in rows
    ]
    return Table("What clients saw", head, cells)


def _counted(outcomes: Iterable[Outcome]) -> dict[str, int]:
    return dict(Counter(outcome.reason for outcome in outcomes).most_common())


def _codes(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {code}" for code, count in counts.items()) or "0"


def _seconds(values: Sequence[float]) -> str:
    if any(map(math.isnan, values)):
        return "-"
    return " / ".join(f"{value:.2f}" for value in values)

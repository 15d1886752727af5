"""The report of a run: a table for people, JSON for programs, and what is not as it must be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from load_tests.faults.injected.row import percentile
from load_tests.faults.kills.kill import KILLED, KillKind
from load_tests.faults.kills.kill_fleet import FleetShape
from load_tests.faults.kills.kill_run import RunResult
from load_tests.harness.table import Table


def failures(result: RunResult, *, pauses: bool = True) -> list[str]:
    """Return what must not be, in words; empty after a good run. `pauses`: check their limits."""
    tally = result.tally
    counts = {
        "tokens lost": tally.tokens_lost,
        "tokens repeated": tally.tokens_repeated,
        "streams cut": tally.streams_cut,
        "other requests without a whole answer": tally.failed,
        "requests with something wrong": tally.wrong,
        "jobs without exactly one terminal entry": sum(
            jobs for entries, jobs in tally.terminal_entries.items() if entries != 1
        ),
        "processes that ended by themselves": len(tally.ended_by_themselves),
        **{f"left over: {name}": count for name, count in tally.leftovers.items()},
    }
    found = [f"{count} {name}" for name, count in counts.items() if count]
    if not tally.jobs:
        found.append("no job was accepted")
    if result.ended_early:
        found.append(f"the run ended early: {result.ended_early}")
    limits, silent = result.shape.limits, KillKind.SILENT
    for what, observed, share, limit in (
        ("pause", tally.killed_pauses(), 0.5, limits.killed_p50_s),
        ("pause", tally.killed_pauses(), 0.99, limits.killed_p99_s),
        (f"{silent}: pause", tally.pauses[silent], 0.5, limits.silent_p50_s),
    ):
        if pauses and observed and (pause := percentile(observed, share)) > limit:
            found.append(f"{what} p{share * 100:.0f} is {pause:.2f} s, the limit is {limit} s")
    return found


def kills_table(result: RunResult) -> Table:
    """Return a row for each kind of kill."""
    tally = result.tally
    rows = [
        _row(str(kind), tally.kills[kind], tally.pauses[kind])
        for kind in KillKind
        if tally.kills[kind]
    ]
    ended = sum(tally.kills[kind] for kind in KILLED)
    rows.append(_row("all that end a process", ended, tally.killed_pauses()))
    rows.append(_row("of these, one kill in the pause", ended, tally.single_pauses))
    head = ["kill", "times", "streams hit", "pause p50 s", "p99 s", "max s"]
    return Table("Silence of streams whose process was killed", head, rows)


def _row(title: str, times: int, pauses: Sequence[float]) -> list[str]:
    shares = [percentile(pauses, share) for share in (0.5, 0.99, 1.0)]
    cells = ["-" if math.isnan(pause) else f"{pause:.2f}" for pause in shares]
    return [title, str(times), str(len(pauses)), *cells]


def summary_table(result: RunResult) -> Table:
    """Return what was counted, beside the settings that matter."""
    tally, shape = result.tally, result.shape
    fleet = shape.fleet
    terminal = ", ".join(f"{n}: {jobs} jobs" for n, jobs in sorted(tally.terminal_entries.items()))
    again = tally.decoded_again / max(1, tally.logged_tokens)
    usual = FleetShape.defaults(fleet.workers)
    steps = "" if fleet.vllm else f", steps of {fleet.step_ms:g} ms"
    made_of = f"{fleet.workers} workers, {fleet.gateways} gateways, {fleet.engine}{steps}"
    decoded_again = f"{tally.decoded_again} ({again:.1%})" if tally.generated_tokens else "-"
    each = result.seconds / max(1, tally.kills.total())
    rows = [
        ["kills", str(tally.kills.total())],
        ["jobs (accepted requests)", str(tally.jobs.total())],
        ["jobs that a kill hit", str(tally.hit)],
        ["classes of requests", str(len(tally.jobs))],
        ["tokens", str(tally.tokens)],
        ["tokens lost", str(tally.tokens_lost)],
        ["tokens repeated", str(tally.tokens_repeated)],
        ["streams", str(tally.streams)],
        ["streams cut", str(tally.streams_cut)],
        ["other requests without a whole answer", str(tally.failed)],
        ["requests with anything else wrong", str(tally.wrong)],
        ["terminal entries per job", terminal or "-"],
        ["tokens decoded again", decoded_again],
        ["refused before acceptance", _counts(tally.refused)],
        ["left over in Redis", _counts(tally.leftovers)],
        ["lease", f"{fleet.lease_s:g} s (default {usual.lease_s:g} s)"],
        ["silence of a lost worker", f"{fleet.lost_after_s:g} s"],
        ["lost workers without progress", f"{fleet.max_attempts} (default {usual.max_attempts})"],
        ["client's attempts", f"{fleet.client_attempts} (default {usual.client_attempts})"],
        ["appendfsync", f"{fleet.appendfsync} (default {usual.appendfsync})"],
        ["fleet", made_of],
        ["rate", f"{shape.rate:g} kills a second, {shape.clients} clients, seed {shape.seed}"],
        ["duration", f"{result.seconds:.0f} s, {each:.1f} s per kill"],
        ["of it, the kills waited for loading workers", f"{tally.waited_s:.0f} s"],
    ]  # fmt: skip
    return Table("Kills", ["", "count"], rows)


def as_json(result: RunResult) -> dict[str, Any]:
    """Return the whole result, ready for JSON."""
    tally, shape = result.tally, result.shape
    return {
        "settings": {
            "kills": shape.kills,
            "seed": shape.seed,
            "rate": shape.rate,
            "clients": shape.clients,
            "engine": shape.fleet.engine,
            "workers": shape.fleet.workers,
            "gateways": shape.fleet.gateways,
            "step_ms": shape.fleet.step_ms,
            "lease_s": shape.fleet.lease_s,
            "max_attempts": shape.fleet.max_attempts,
            "appendfsync": shape.fleet.appendfsync,
            "client_attempts": shape.fleet.client_attempts,
            "lost_after_s": shape.fleet.lost_after_s,
            "silent_s": shape.fleet.silent_s,
            "controls": list(shape.controls),
        },
        "seconds": result.seconds,
        "waited_s": tally.waited_s,
        "kills": dict(tally.kills),
        "jobs": tally.jobs.total(),
        "jobs_by_class": dict(tally.jobs),
        "jobs_hit": tally.hit,
        "ends": dict(tally.ends),
        "refused": dict(tally.refused),
        "tokens": tally.tokens,
        "tokens_lost": tally.tokens_lost,
        "tokens_repeated": tally.tokens_repeated,
        "tokens_decoded_again": tally.decoded_again,
        "streams": tally.streams,
        "streams_cut": tally.streams_cut,
        "failed": tally.failed,
        "wrong": tally.wrong,
        "terminal_entries_per_job": {str(n): jobs for n, jobs in tally.terminal_entries.items()},
        "pauses_s": {
            **{str(kind): _pauses(tally.pauses[kind]) for kind in KillKind},
            "all that end a process": _pauses(tally.killed_pauses()),
            "of these, one kill in the pause": _pauses(tally.single_pauses),
        },
        "long_pauses": tally.long_pauses,
        "left_over": tally.leftovers,
        "ended_by_themselves": tally.ended_by_themselves,
        "ended_early": result.ended_early,
        "failures": failures(result),
        "examples": tally.examples,
    }


def _pauses(pauses: Sequence[float]) -> dict[str, float | int]:
    if not pauses:
        return {"streams": 0}
    return {
        "streams": len(pauses),
        "p50": percentile(pauses, 0.5),
        "p99": percentile(pauses, 0.99),
        "max": max(pauses),
    }


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "0"

"""The report of a run: tables for people, JSON for programs, and what is not as it must be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from load_tests.faults.kills.kill_run import RunResult
from load_tests.faults.kills.kill_schedule import KILLED, KillKind
from load_tests.harness.fleet import FleetShape
from load_tests.harness.spread import percentile
from load_tests.harness.table import Table
from shared.client.retries import Limits


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
        "errors in the ledger": tally.ledger_errors,
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
    rows = []
    for title, pauses in _pauses(result).items():
        ended = sum(tally.kills[kind] for kind in KILLED)
        times = tally.kills[title] if title in tally.pauses else ended
        shares = [percentile(pauses, share) for share in (0.5, 0.99, 1.0)]
        cells = ["-" if math.isnan(pause) else f"{pause:.2f}" for pause in shares]
        if times:
            rows.append([title, str(times), str(len(pauses)), *cells])
    head = ["kill", "times", "streams hit", "pause p50 s", "p99 s", "max s"]
    return Table("Silence of streams whose process was killed", head, rows)


def _pauses(result: RunResult) -> dict[str, Sequence[float]]:
    tally = result.tally
    return {
        **{str(kind): tally.pauses[kind] for kind in KillKind},
        "all that end a process": tally.killed_pauses(),
        "of these, one kill in the pause": tally.single_pauses,
    }


def summary_table(result: RunResult) -> Table:
    """Return what was counted, beside the settings that matter."""
    tally, shape = result.tally, result.shape
    fleet, usual = shape.fleet, FleetShape()
    terminal = ", ".join(f"{n}: {jobs} jobs" for n, jobs in sorted(tally.terminal_entries.items()))
    again = tally.decoded_again / max(1, tally.logged_tokens)
    steps = "" if fleet.vllm else f", steps of {fleet.step_ms:g} ms"
    made_of = f"{fleet.workers} workers, {fleet.gateways} gateways, {fleet.engine}{steps}"
    decoded_again = f"{tally.decoded_again} ({again:.1%})" if tally.generated_tokens else "-"
    each = result.seconds / max(1, tally.kills.total())
    rows = {
        "kills": tally.kills.total(),
        "jobs (accepted requests)": tally.jobs.total(),
        "jobs that a kill hit": tally.hit,
        "classes of requests": len(tally.jobs),
        "tokens": tally.tokens,
        "tokens lost": tally.tokens_lost,
        "tokens repeated": tally.tokens_repeated,
        "streams": tally.streams,
        "streams cut": tally.streams_cut,
        "other requests without a whole answer": tally.failed,
        "requests with anything else wrong": tally.wrong,
        "terminal entries per job": terminal or "-",
        "tokens decoded again": decoded_again,
        "refused before acceptance": _counts(tally.refused),
        "left over in Redis": _counts(tally.leftovers),
        "lease": f"{fleet.lease_s:g} s (default {usual.lease_s:g} s)",
        "lost workers without progress": f"{fleet.max_attempts} (default {usual.max_attempts})",
        "client's attempts": f"{shape.client_attempts} (default {Limits().attempts})",
        "appendfsync": f"{fleet.appendfsync} (default {usual.appendfsync})",
        "fleet": made_of,
        "rate": f"{shape.rate:g} kills a second, {shape.clients} clients, seed {shape.seed}",
        "duration": f"{result.seconds:.0f} s, {each:.1f} s per kill",
        "of it, the kills waited for loading workers": f"{tally.waited_s:.0f} s",
    }
    return Table("Kills", ["", "count"], [[name, str(value)] for name, value in rows.items()])


def as_json(result: RunResult) -> dict[str, Any]:
    """Return the whole result, ready for JSON."""
    tally, shape = result.tally, result.shape
    # `pauses_s` has the percentiles.
    long = ("pauses", "single_pauses", "kills_of", "logged")
    counted = {
        each.name: getattr(tally, each.name) for each in fields(tally) if each.name not in long
    }
    return {
        "settings": {
            **asdict(shape),
            "engine": shape.fleet.engine,
            "lease_s": shape.fleet.lease_s,
        },
        "seconds": result.seconds,
        **counted,
        "tokens_decoded_again": tally.decoded_again,
        "pauses_s": {
            title: {
                "streams": len(pauses),
                **{f"p{p}": percentile(pauses, p / 100) for p in (50, 99, 100) if pauses},
            }
            for title, pauses in _pauses(result).items()
        },
        "ended_early": result.ended_early,
        "failures": failures(result),
    }


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "0"

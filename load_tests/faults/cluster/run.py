"""Streams and jobs of all classes on a fleet whose shards get other masters again and again."""

from __future__ import annotations

import argparse
import asyncio
import math
import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import uvloop

from load_tests.clients.trial import Trial
from load_tests.faults.checked_call import CheckedCall
from load_tests.faults.cluster.injection import MAY_LOSE, Fault, Injection, inject, plan_fault
from load_tests.harness.fleet import FleetShape
from load_tests.harness.session import Progress, print_progress, print_tables, save_result
from load_tests.harness.spread import percentile
from load_tests.harness.table import Table
from load_tests.oracle.observation import End, Observation
from load_tests.oracle.request_source import RequestSource
from shared.job.job import shard_of

SHARDS = 3
FAULTS = tuple(Fault)
_CLIENTS = 100
_WARM_UP_S, _BETWEEN_S = 3.0, 2.0
_OPEN_STREAMS = 2
"""A fault waits until so many streams of each shard have begun."""
_TIMEOUT_S = 60.0
_POLL_S = 0.05
_STEP_MS = 100.0
_OVER_S, _OTHERS_S = 1.0, 0.5
"""Limits: a pause beyond the time until another master is known; a pause of other shards."""
_LOST = ("stream_reset", "log_lost", "gone")
"""Error codes of jobs of which Redis has lost writes."""


@dataclass(slots=True)
class ClusterResult:
    """What a run found."""

    injections: list[Injection] = field(default_factory=list)
    calls: list[CheckedCall] = field(default_factory=list)

    def pauses(self, fault: Fault, *, touched: bool) -> list[tuple[float, Injection]]:
        """Return the pause of each stream that was open, of the shards that the fault touched or of
        the others."""
        return [
            (pause_s, injection)
            for injection in self.injections
            if injection.fault is fault
            for call in self.calls
            if call.seen.streams and (shard_of(call.seen.job_id) in injection.shards) == touched
            if (pause_s := _pause_in(call.seen, injection)) is not None
        ]

    @property
    def ends(self) -> Counter[str]:
        """Count the requests by how they ended."""
        return Counter(f"{call.seen.end} {call.seen.code}".strip() for call in self.calls)

    def failures(self, *, pauses: bool = True) -> list[str]:
        """Return what must not be, in words. `pauses`: check their limits."""
        seen = [call.seen for call in self.calls]
        may_lose = any(each.fault in MAY_LOSE for each in self.injections)
        counts = {
            "answers or records that are wrong": sum(bool(call.errors) for call in self.calls),
            "calls that hung": sum(each.end is End.HUNG for each in seen),
            "streams that ended without an error": sum(each.end is End.CUT for each in seen),
            "calls that were refused": sum(each.end is End.REFUSED for each in seen),
            "calls that failed, and not because of lost writes": sum(
                each.end is End.FAILED and not (may_lose and each.code in _LOST) for each in seen
            ),
        }
        found = [f"{count} {what}" for what, count in counts.items() if count]
        if not any(each.complete for each in seen):
            found.append("no answer was complete")
        for fault in FAULTS if pauses else ():
            over = [pause_s - each.took_s for pause_s, each in self.pauses(fault, touched=True)]
            others = [pause_s for pause_s, _ in self.pauses(fault, touched=False)]
            for what, values, share, limit_s in (
                ("beyond the time without a master", over, 0.99, _OVER_S),
                ("of other shards", others, 0.99, _OTHERS_S),
            ):
                if values and (value := percentile(values, share)) > limit_s:
                    found.append(f"{fault}: p99 of pauses {what}: {value:.2f} s, limit {limit_s} s")
        return found

    def table(self) -> Table:
        """Return a row for each fault."""
        rows = []
        for fault in FAULTS:
            took = [each.took_s for each in self.injections if each.fault is fault]
            touched = self.pauses(fault, touched=True)
            figures = [
                (took, 0.5), (took, 1.0),
                *(([pause_s for pause_s, _ in touched], share) for share in (0.5, 0.99, 1.0)),
                ([pause_s - each.took_s for pause_s, each in touched], 0.99),
                *(([pause_s for pause_s, _ in self.pauses(fault, touched=False)], share)
                  for share in (0.5, 0.99, 1.0)),
            ]  # fmt: skip
            values = [percentile(each, share) if each else math.nan for each, share in figures]
            cells = ["-" if math.isnan(value) else f"{value:.2f}" for value in values]
            rows.append([str(fault), str(len(took)), str(len(touched)), *cells])
        head = ["fault", "times", "streams\ntouched", "no master\np50 s", "max s", "pause\np50 s"]
        head += ["p99 s", "max s", "beyond\np99 s", "others\np50 s", "p99 s", "max s"]
        return Table("Pauses of streams when a shard gets another master", head, rows)


def _pause_in(seen: Observation, injection: Injection) -> float | None:
    """The longest time between two parts that began before the fault ended, and ended after it
    began; None if the stream was not open all the while."""
    if not seen.at or seen.at[0] > injection.began or seen.at[-1] < injection.began:
        return None
    gaps = [
        after - before
        for before, after in pairwise(seen.at)
        if before <= injection.ended and after >= injection.began
    ]
    return max(gaps, default=None)


async def play(
    folder: Path, *, times: int, clients: int, seed: str, progress: Progress
) -> ClusterResult:
    """Inject each fault so many times.

    Raises ProcessError if the cluster does not recover, TimeoutError if no streams begin.
    """
    result, rng = ClusterResult(), random.Random(seed)
    shape = FleetShape(workers=3, gateways=2, step_ms=_STEP_MS, shards=SHARDS)
    trial = Trial(
        folder,
        shape,
        RequestSource(),
        lambda seen, stored: result.calls.append(CheckedCall(seen, stored)),
        timeout_s=_TIMEOUT_S,
    )
    async with trial:
        cluster = trial.fleet.cluster
        trial.clients.start(trial.source.draw, clients=clients, seed=seed)
        await asyncio.sleep(_WARM_UP_S)
        for n in range(times):
            for fault in FAULTS:
                # Chosen before, as a busy machine takes a while for it: the streams may have ended.
                planned = await asyncio.to_thread(plan_fault, cluster, fault, rng, SHARDS)
                async with asyncio.timeout(_TIMEOUT_S):
                    while not _each_shard_streams(trial):
                        await asyncio.sleep(_POLL_S)
                        trial.check()
                result.injections.append(await asyncio.to_thread(inject, cluster, planned))
                await asyncio.sleep(_BETWEEN_S)
                trial.check()
            progress(f"{n + 1} of each fault, {len(result.calls)} calls")
        await trial.stop()
    return result


def _each_shard_streams(trial: Trial) -> bool:
    """Whether `_OPEN_STREAMS` streams of each shard have begun, and have not ended."""
    seen = trial.clients.open.values()
    begun = Counter(shard_of(each.job_id) for each in seen if each.streams and each.at)
    return all(begun[shard] >= _OPEN_STREAMS for shard in range(SHARDS))


def run_cluster(arguments: argparse.Namespace, folder: Path) -> int:
    """Run the faults and print the report; return the exit status."""
    result = uvloop.run(
        play(
            folder / "cluster",
            times=arguments.times,
            clients=arguments.clients or _CLIENTS,
            seed=arguments.seed,
            progress=print_progress,
        )
    )
    print_tables([result.table()])
    print("\n" + ", ".join(f"{count} {end}" for end, count in result.ends.most_common()))
    for call in result.calls:
        lost = call.seen.end is End.FAILED and call.seen.code not in _LOST
        if call.errors or lost or call.seen.end is End.CUT:
            print(f"{'WRONG' if call.errors else call.seen.end} {call.seen.job_id} {call}")
    failures = result.failures()
    print("\n".join(f"FAILED: {line}" for line in failures) or "all checks passed")
    save_result(arguments.json, "cluster", {"ends": result.ends, "failures": failures})
    return 1 if failures else 0

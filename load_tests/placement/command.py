"""`placement`: play a trace of prompts with common prefixes against a fleet with prefix caches.

Each load is played twice: jobs go to workers oldest first, and by placement, to the worker that
ran the prefix of their prompt last. Engines, leases and the times of placement are `--speed` times
as fast as in the trace. Exit status 1 if a call failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from load_tests.harness.errors import RunError
from load_tests.harness.fleet import Fleet, FleetShape
from load_tests.harness.session import (
    OUTPUT,
    add_options,
    parse_names,
    print_progress,
    print_tables,
    save_result,
    session,
)
from load_tests.harness.spread import percentile
from load_tests.harness.table import Table
from load_tests.placement.player import KEY, Answer, longest_wait_s, play
from load_tests.placement.trace import Call, hit_ratio, read_trace
from shared.job.rules import PlacementRules
from worker.engines.simulated.engine import PrefixCache

HELP = "run jobs where the prefix of their prompt is cached, on a trace: hit ratio, waits"

_WORKERS, _BLOCKS = 8, 3000
_COARSE = 4
"""So many tokens of an answer are one token of the engine, which saves the machine's CPU time."""
_STEP_MS, _PREFILL_TOKENS_S = _COARSE * 25.0, 12_000
_LEASE_S, _SHORTEST_LEASE_S = 15.0, 2.0
_LOADS, _ROWS = ("low", "some", "overload"), ("oldest", "placement")


class _Load(NamedTuple):
    """A rate of calls, and the slots of each worker."""

    name: str
    speed: float
    """How many times as often as in the trace calls come."""
    slots: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run showed. Times are seconds of the trace."""

    load: str
    row: str
    hit_ratio: float
    ttft_p50_s: float
    ttft_p95_s: float
    longest_wait_s: float
    """Until a worker took the job."""
    failed: int
    cores: float
    """CPU time of fleet and client, per second: the figures are right only with some left."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    options = {
        "--trace": (Path, "JSONL, may be .gz: timestamp, input_length, output_length, hash_ids"),
        "--loads": (",".join(_LOADS), "which loads"),
        "--rows": (",".join(_ROWS), "which orders"),
        "--some": (1.5, "calls of the load `some` come so many times as often as in the trace"),
        "--speed": (10.0, "how many times as fast as the trace"),
        "--calls": (0, "the first so many calls of the trace; 0: all"),
    }
    add_options(parser, {**options, **OUTPUT})


def main(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    if arguments.trace is None:
        raise SystemExit("--trace: which one?")
    names, rows = parse_names(arguments.loads, _LOADS), parse_names(arguments.rows, _ROWS)
    loads = [
        _Load("low", 1.0, 16),
        _Load("some", arguments.some, 8),
        _Load("overload", 2.5, 8),
    ]
    found = []
    with session() as processes:
        calls = read_trace(arguments.trace, arguments.calls)
        shared = hit_ratio(calls, [PrefixCache(_WORKERS * _BLOCKS)])
        in_turn = hit_ratio(calls, [PrefixCache(_BLOCKS) for _ in range(_WORKERS)])
        for load in loads:
            for row in rows if load.name in names else ():
                folder = processes.folder / f"{load.name}-{row}"
                found.append(asyncio.run(_run(folder, load, row, calls, arguments)))
                print_progress(", ".join(f"{k} {v}" for k, v in asdict(found[-1]).items()))
    title = (
        f"{arguments.trace.name}: {len(calls)} calls, {arguments.speed:g} times as fast; "
        f"hit ratio of one shared cache {shared:.1%}, of calls in turn {in_turn:.1%}"
    )
    print_tables([_table(title, found)])
    data = {
        "rows": [asdict(each) for each in found],
        "shared_cache": shared,
        "in_turn": in_turn,
        **{name: getattr(arguments, name) for name in ("some", "speed")},
        "calls": len(calls),
    }
    save_result(arguments.json, "placement", data)
    return int(any(each.failed for each in found))


async def _run(
    folder: Path, load: _Load, row: str, trace: Sequence[Call], arguments: argparse.Namespace
) -> Figures:
    """Raises RunError if the client was too slow, or no call was answered."""
    calls = [
        call._replace(
            at_s=call.at_s / load.speed, output_tokens=max(1, ceil(call.output_tokens / _COARSE))
        )
        for call in trace
    ]
    shape = _shape(load, row, arguments)
    fleet = await asyncio.to_thread(Fleet, folder, shape)
    try:
        began, cpu_s = time.monotonic(), _cpu_s(fleet)
        answers = await play(calls, fleet.ports, arguments.speed)
        cores = (_cpu_s(fleet) - cpu_s) / (time.monotonic() - began)
        good = [answer for answer in answers if not answer.problem]
        if problems := [answer.problem for answer in answers if answer.problem]:
            print_progress(f"{len(problems)} calls failed: {problems[0]}")
        if not good:
            raise RunError("no call was answered")
        longest_s = await longest_wait_s(good, arguments.speed)
    finally:
        await asyncio.to_thread(fleet.close)
    return _figures((load.name, row), calls, answers, longest_s, cores)


def _shape(load: _Load, row: str, arguments: argparse.Namespace) -> FleetShape:
    speed = arguments.speed
    rules = PlacementRules()
    rules = rules._replace(
        overtake_s=rules.overtake_s / speed,
        window=0 if row == "oldest" else rules.window,
    )
    settings: dict[str, Any] = {
        "placement": json.dumps(rules._asdict()),
        "sim_max_num_seqs": load.slots,
        "sim_kv_tokens": 100_000_000,
        "sim_max_model_len": 1 << 18,
        "sim_prefill_tokens_per_step": int(_PREFILL_TOKENS_S * _STEP_MS / 1e3),
        "sim_cache_blocks": _BLOCKS,
        "kv_high_watermark": 1.0,
        "api_keys": f"all:{KEY}",
        "stream_ttl_s": 36_000,  # jobs are read at the end
    }
    return FleetShape(
        gateways=2,
        workers=_WORKERS,
        step_ms=_STEP_MS / speed,
        lease_s=max(_SHORTEST_LEASE_S, _LEASE_S / speed),
        appendonly=False,
        settings=settings,
    )


def _cpu_s(fleet: Fleet) -> float:
    """CPU time of the fleet and of this process."""
    return time.process_time() + sum(process.cpu_s() for process in fleet.processes)


def _figures(
    names: tuple[str, str],
    calls: Sequence[Call],
    answers: Sequence[Answer],
    longest_s: float,
    cores: float,
) -> Figures:
    answered = [each for each in zip(calls, answers, strict=True) if not each[1].problem]
    ttft = [answer.ttft_s for _, answer in answered]
    tokens = sum(call.prompt_tokens for call, _ in answered)
    return Figures(
        *names,
        hit_ratio=sum(answer.cached_tokens for _, answer in answered) / tokens,
        ttft_p50_s=percentile(ttft, 0.5),
        ttft_p95_s=percentile(ttft, 0.95),
        longest_wait_s=longest_s,
        failed=len(calls) - len(answered),
        cores=cores,
    )


def _table(title: str, found: Sequence[Figures]) -> Table:
    head = ["load", "order", "hit\nratio %", "TTFT\np50 s", "p95 s", "longest\nwait s", "failed"]
    rows = [
        [
            each.load,
            each.row,
            f"{100 * each.hit_ratio:.1f}",
            f"{each.ttft_p50_s:.2f}",
            f"{each.ttft_p95_s:.1f}",
            f"{each.longest_wait_s:.1f}",
            str(each.failed),
            f"{each.cores:.2f}",
        ]
        for each in found
    ]
    return Table(title, [*head, "CPU\ncores"], rows)

"""`fairness`: play a trace of several tenants against a full fleet, under four orders.

The rows are first come, first served (all calls belong to one tenant), VTC by its own rules, and
Flotilla's, without and with running jobs that are handed back. All go through the same gateways,
queue and worker; the engine, the half-life and the leases are `--speed` times as fast as in the
trace. Exit status 1 if a call failed, or an answer differs between two runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from types import MappingProxyType
from typing import Any

from load_tests.fairness import scenarios
from load_tests.fairness.difference import Call, differences
from load_tests.fairness.player import key_of, play, read_trace
from load_tests.fairness.scenarios import SCENARIOS, Scenario
from load_tests.harness.errors import RunError
from load_tests.harness.fleet import Fleet, FleetShape
from load_tests.harness.session import (
    OUTPUT,
    add_options,
    print_progress,
    print_tables,
    save_result,
    session,
)
from load_tests.harness.spread import percentile
from load_tests.harness.table import Table
from load_tests.vllm.systems import VllmFleet, VllmServe
from shared.job.rules import ShareRules

HELP = "share a full pool between the tenants of a trace: service difference, waits"

_VTC = ShareRules(half_life_s=0.0, ahead=0.0, lift=1.0)
_RULES = {
    "fcfs": ShareRules(),
    "vtc": _VTC,
    "shares": ShareRules(),
}
"""Row -> its rules."""
_NO_WEIGHTS: Mapping[str, float] = MappingProxyType({})
# One engine with a small cache. As VTC's paper has it: measured there, but for the step's length.
_SLOTS, _KV_TOKENS, _STEP_MS, _PROMPT_US = 32, 10_000, 42.4, 214.0
_LEASE_S = 15.0
_SHORTEST_LEASE_S = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    options = {
        "--trace": (Path, "CSV: client, at_s, prompt_tokens, output_tokens"),
        "--scenario": ("", f"in place of a trace: {', '.join(SCENARIOS)}"),
        "--vllm": (False, "the scenario on real vLLM: behind its own server, and behind a fleet"),
        "--model": ("", "with --vllm: folder of a model (default: the demo model)"),
        "--engine-args": ("", "with --vllm: its options"),
        "--rows": (",".join(_RULES), "which orders"),
        "--runs": (1, "runs of each"),
        "--speed": (6.0, "how many times as fast as the trace"),
        "--watermark": (0.9, "share of the KV cache above which the worker claims nothing"),
        "--calls": (0, "the first so many calls of the trace; 0: all"),
    }
    add_options(parser, {**options, **OUTPUT})


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run showed. Times are seconds of the trace."""

    row: str
    mean_difference: float
    max_difference: float
    by_token: float
    """The mean difference, where each token counts when it came."""
    ttft_p50_s: float
    ttft_p95_s: float
    tokens_s: float
    """Of prompts and answers."""
    failed: int

    @classmethod
    def of(cls, row: str, calls: Sequence[Call]) -> Figures:
        """Those of a run."""
        answered = [call for call in calls if not call.problem]
        if not answered:
            raise RunError(f"no call was answered: {calls[0].problem}")
        found = differences(calls)
        ttft = [call.first_s - call.at_s for call in answered]
        tokens = sum(call.prompt_tokens + call.output_tokens for call in answered)
        return cls(
            row=row,
            mean_difference=mean(found),
            max_difference=max(found),
            by_token=mean(differences(calls, Call.by_token)),
            ttft_p50_s=percentile(ttft, 0.5),
            ttft_p95_s=percentile(ttft, 0.95),
            tokens_s=tokens / max(call.end_s for call in answered),
            failed=len(calls) - len(answered),
        )


def main(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    if arguments.scenario:
        return _scenario(arguments)
    if arguments.trace is None:
        raise SystemExit("--vllm needs --scenario" if arguments.vllm else "--trace: which one?")
    rows = arguments.rows.split(",")
    if unknown := set(rows) - set(_RULES):
        raise SystemExit(f"--rows: {', '.join(sorted(unknown))}; there are {', '.join(_RULES)}")
    found, texts, different, status = [], list[str](), 0, 0
    with session() as processes:
        trace = read_trace(arguments.trace, arguments.calls)
        for number in range(arguments.runs):
            for row in rows:
                folder = processes.folder / f"{row}-{number}"
                calls = asyncio.run(_run(folder, row, trace, arguments))
                found.append(Figures.of(row, calls))
                texts = texts or [call.text for call in calls]
                different += sum(a.text != b for a, b in zip(calls, texts, strict=True))
                print_progress(_line(found[-1]))
                status |= _status(calls)
    print_tables([_table(found, rows, arguments.runs)])
    data = {
        "rows": [asdict(each) for each in found],
        "different_answers": different,
        "speed": arguments.speed,
        "watermark": arguments.watermark,
    }
    save_result(arguments.json, "fairness", data)
    if different:
        print_progress(f"{different} answers differ between two runs")
    return 1 if different else status


def _scenario(arguments: argparse.Namespace) -> int:
    if arguments.scenario not in SCENARIOS:
        raise SystemExit(f"--scenario: there are {', '.join(SCENARIOS)}")
    scenario = SCENARIOS[arguments.scenario]()
    if arguments.vllm:
        return _on_vllm(scenario, arguments)
    with session() as processes:
        folder = processes.folder / "fleet"
        calls = asyncio.run(_run(folder, "shares", scenario.calls, arguments, scenario.weights))
    print_tables([scenarios.table(scenario, calls)])
    return _status(calls)


def _on_vllm(scenario: Scenario, arguments: argparse.Namespace) -> int:
    """Play it against `vllm serve`, then against a fleet with the same engine."""
    tenants = sorted({call.tenant for call in scenario.calls})
    keys = ",".join(f"{tenant}:{key_of(tenant)}" for tenant in tenants)
    options = {"model": arguments.model, "engine_args": arguments.engine_args}
    fleet = VllmFleet.variant(VllmFleet.name, **options, settings={"api_keys": keys})
    status = 0
    for system in (VllmServe.variant(VllmServe.name, **options), fleet):
        with session() as processes:
            started = system(processes)
            started.start()
            fields = {**system.body_fields, "stream_options": {"include_usage": True}}
            calls = asyncio.run(play(scenario.calls, started.ports, 1.0, fields=fields))
        table = scenarios.table(scenario, calls)
        print_tables([replace(table, title=f"{system.name}: {table.title}")])
        status |= _status(calls)
    return status


def _status(calls: Sequence[Call]) -> int:
    problems = [call.problem for call in calls if call.problem]
    if problems:
        print_progress(f"{len(problems)} calls failed: {problems[0]}")
    return 1 if problems else 0


async def _run(
    folder: Path,
    row: str,
    trace: Sequence[Call],
    arguments: argparse.Namespace,
    weights: Mapping[str, float] = _NO_WEIGHTS,
) -> list[Call]:
    speed, rules = arguments.speed, _RULES[row]
    tenants = sorted({"all", *(call.tenant for call in trace)})
    shares = rules._replace(half_life_s=rules.half_life_s / speed)
    settings: dict[str, Any] = {
        "sim_max_num_seqs": _SLOTS,
        "sim_kv_tokens": _KV_TOKENS,
        "sim_prefill_us_per_token": _PROMPT_US / speed,
        "kv_high_watermark": arguments.watermark,
        "fair_shares": json.dumps(shares._asdict()),
        "tenants": json.dumps({name: {"weight": weight} for name, weight in weights.items()}),
        "api_keys": ",".join(f"{tenant}:{key_of(tenant)}" for tenant in tenants),
    }
    shape = FleetShape(
        gateways=2,
        step_ms=_STEP_MS / speed,
        lease_s=max(_SHORTEST_LEASE_S, _LEASE_S / speed),
        settings=settings,
    )
    fleet = await asyncio.to_thread(Fleet, folder, shape)
    try:
        return await play(trace, fleet.ports, speed, one_tenant=row == "fcfs")
    finally:
        await asyncio.to_thread(fleet.close)


def _line(each: Figures) -> str:
    return (
        f"{each.row}: difference {each.mean_difference:.0f}, TTFT p50 {each.ttft_p50_s:.1f} s, "
        f"{each.tokens_s:.0f} tokens/s, {each.failed} failed"
    )


def _table(found: Sequence[Figures], rows: Sequence[str], runs: int) -> Table:
    """Means of the runs."""
    head = ["order", "difference\nmean", "sd", "max", "by token", "TTFT\np50 s", "p95 s"]
    head += ["tokens/s", "failed"]
    cells = []
    for row in rows:
        of_row = [each for each in found if each.row == row]
        means = [each.mean_difference for each in of_row]
        values = [
            f"{mean(means):.0f}",
            f"{stdev(means):.0f}" if runs > 1 else "-",
            *(
                f"{mean(getattr(each, name) for each in of_row):.{digits}f}"
                for name, digits in (
                    ("max_difference", 0),
                    ("by_token", 0),
                    ("ttft_p50_s", 1),
                    ("ttft_p95_s", 0),
                    ("tokens_s", 0),
                )
            ),
        ]
        cells.append([row, *values, str(sum(each.failed for each in of_row))])
    return Table(f"Fair shares ({runs} runs each)", head, cells)

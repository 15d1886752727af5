"""The part of the command `faults` that kills processes; exit status 1 if a check failed."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import uvloop

from load_tests.faults.kills.controls import CONTROLS
from load_tests.faults.kills.kill_run import KillRun, RunShape, hard_fleet, usual_fleet
from load_tests.faults.kills.kill_schedule import KillKind
from load_tests.faults.kills.report import as_json, failures, kills_table, summary_table
from load_tests.harness import machine
from load_tests.harness.session import parse_names, print_progress, print_tables, save_result

_KILLS, _DEFAULTS_KILLS = 1000, 10_000
_RATE = 7.0
_WORKERS, _DEFAULTS_WORKERS = 10, 24
"""At default settings a job may lose 3 workers in a row without progress. With more workers, one of
them is killed more seldom, at the same rate of kills."""
_VLLM_KILLS, _VLLM_WORKERS = 300, 2
"""Two cores load one model at a time."""
_CLIENTS, _VLLM_CLIENTS = 24, 6
_TIMEOUT_S, _VLLM_TIMEOUT_S = 60.0, 180.0
"""A client's time limit; a worker that loads vLLM takes CPU from those that answer."""
KINDS = {kind.name.lower(): kind for kind in KillKind}
"""The kinds of kills by the names that the option `--kinds` takes."""


def kill_options() -> Mapping[str, tuple[Any, str]]:
    """Return the options of the kills."""
    return {
        "--kills": (int, f"default {_KILLS}, --defaults {_DEFAULTS_KILLS}, --vllm {_VLLM_KILLS}"),
        "--defaults": (False, "kills at the settings of a plain `flotilla up`"),
        "--rate": (_RATE, "kills a second on average"),
        "--kinds": (",".join(KINDS), "kinds of kills"),
        "--clients": (int, f"of --kills (default {_CLIENTS}; with --vllm {_VLLM_CLIENTS})"),
        "--kill-workers": (
            int,
            f"workers: default {_WORKERS}, --defaults {_DEFAULTS_WORKERS}, --vllm {_VLLM_WORKERS}",
        ),
        "--without": ("", f"switch parts off, so that the run must fail: of {', '.join(CONTROLS)}"),
    }


def run_kills(arguments: argparse.Namespace, folder: Path) -> int:
    """Run kills and print the report; return the exit status."""
    shape = _shape(arguments)
    result = uvloop.run(KillRun(folder / "kills", shape, print_progress).play())
    print_tables([summary_table(result), kills_table(result)])
    found = machine.describe()
    print(
        f"\n{found['date']}, {found['cores']} cores ({found['cpu']}), Python {found['python']}, "
        f"Redis {found['redis']}, {shape.fleet.engine}"
    )
    tally = result.tally
    for head, lines in (("WRONG", tally.examples), ("ENDED", tally.ended_by_themselves)):
        for line in lines:
            print(f"{head} {line}")
    wrong = failures(result)
    print("\n".join(f"FAILED: {line}" for line in wrong) or "all checks passed")
    name = "kills" + "-defaults" * arguments.defaults + "-vllm" * arguments.vllm
    save_result(arguments.json, name, {"machine": found, **as_json(result)})
    return 1 if wrong else 0


def _shape(arguments: argparse.Namespace) -> RunShape:
    usual, vllm = arguments.defaults, arguments.vllm
    kills, workers, clients = _KILLS, _WORKERS, _CLIENTS
    if vllm:
        kills, workers, clients = _VLLM_KILLS, _VLLM_WORKERS, _VLLM_CLIENTS
    elif usual:
        kills, workers = _DEFAULTS_KILLS, _DEFAULTS_WORKERS
    fleet = usual_fleet if usual else hard_fleet
    return (RunShape.defaults if usual else RunShape)(
        fleet=fleet(
            arguments.kill_workers or workers,
            vllm=vllm,
            controls=tuple(parse_names(arguments.without, CONTROLS)),
        ),
        kills=arguments.kills or kills,
        seed=int(arguments.seed),
        rate=arguments.rate,
        kinds=tuple(KINDS[name] for name in parse_names(arguments.kinds, KINDS)),
        clients=arguments.clients or clients,
        timeout_s=_VLLM_TIMEOUT_S if vllm else _TIMEOUT_S,
    )

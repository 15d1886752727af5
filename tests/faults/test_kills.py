"""A short run of kills loses nothing; with a part of the product switched off, the run fails.

`make faults` is the long run. Nothing here depends on how fast the machine is.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from load_tests.faults.kills.kill_run import KillRun, RunResult, RunShape, hard_fleet
from load_tests.faults.kills.kill_schedule import KillKind
from load_tests.faults.kills.report import failures

CLIENT_S = 5.0
"""A client's time limit: with a part switched off some answers may never come."""


def run(folder: Path, shape: RunShape) -> RunResult:
    return asyncio.run(KillRun(folder / "fleet", shape, print).play())


def test_kills_of_every_kind_lose_nothing(tmp_path: Path) -> None:
    result = run(tmp_path, RunShape(kills=30, seed=19, rate=2.5))
    assert failures(result, pauses=False) == [], result.tally.examples
    assert set(result.tally.kills) == set(KillKind)
    assert result.tally.kills.total() == 30
    assert result.tally.hit >= 10
    assert set(result.tally.terminal_entries) == {1}
    assert result.tally.logged, "the ledger was compared with logs"
    assert len(result.classes) >= 24


def test_without_fencing_the_run_fails(tmp_path: Path) -> None:
    shape = RunShape(
        kills=12,
        seed=19,
        rate=2.5,
        kinds=(KillKind.STOP,),
        clients=32,
        timeout_s=CLIENT_S,
        end_s=CLIENT_S,
        fleet=hard_fleet(5, lease_s=0.6, controls=("fencing",)),
    )
    result = run(tmp_path, shape)
    assert failures(result, pauses=False)
    assert result.tally.ends["complete"] > 0, "the fleet works, but not safely"
    assert result.tally.ends.keys() & {"failed log_lost", "failed stream_reset"}, "two have written"


def test_without_the_log_the_run_fails(tmp_path: Path) -> None:
    shape = RunShape(
        kills=10,
        seed=19,
        rate=1.0,  # time for output in between, on a busy machine too
        kinds=(KillKind.WORKER,),
        timeout_s=CLIENT_S,
        end_s=CLIENT_S,
        fleet=hard_fleet(3, controls=("log",)),
    )
    result = run(tmp_path, shape)
    assert failures(result, pauses=False)
    ends = result.tally.ends
    assert ends["failed stream_reset"] > 0, ("a client has got what is gone", ends)


def test_without_detection_the_run_fails(tmp_path: Path) -> None:
    shape = RunShape(
        kills=8,
        seed=19,
        rate=0.6,
        kinds=(KillKind.WORKER,),
        one_at_a_time=True,
        fleet=hard_fleet(3, lease_s=5.0, controls=("detection",)),
    )
    result = run(tmp_path, shape)
    found = failures(result)
    assert [line for line in found if "the limit is" in line], (result.tally.pauses, found)
    assert failures(result, pauses=False) == [], result.tally.examples

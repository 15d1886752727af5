"""The part of the command `faults` that runs batches; exit status 1 if a sum is not right."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvloop

from load_tests.faults.batches.fault_schedule import BatchFault
from load_tests.faults.batches.run import STORAGES, BatchFaultRun, BatchRunResult, BatchRunShape
from load_tests.harness.session import parse_names, print_progress, print_tables, save_result
from load_tests.harness.table import Table

_LINES = 50_000


def batch_options() -> Mapping[str, tuple[Any, str]]:
    """Return the options of these runs."""
    return {
        "--batches": (False, "batches whose owners, workers, gateways, storage and Redis fail"),
        "--lines": (_LINES, "lines of --batches that are all answered"),
        "--storage": (",".join(STORAGES), "storages of --batches, one run with each"),
    }


def run_batches(arguments: argparse.Namespace, folder: Path) -> int:
    """Run them and print the report; return the exit status."""
    failed = False
    for storage in parse_names(arguments.storage, STORAGES):
        shape = BatchRunShape(arguments.lines, storage, arguments.seed)
        run = BatchFaultRun(folder / storage, shape, print_progress)
        result = uvloop.run(run.play())
        print_tables([_batches_table(result), _faults_table(result)])
        print("\n".join(f"FAILED: {each}" for each in result.failures) or "all checks passed")
        save_result(arguments.json, f"batches-{storage}", _as_json(result))
        failed = failed or bool(result.failures)
    return int(failed)


def _batches_table(result: BatchRunResult) -> Table:
    rows = [
        [
            each.wanted,
            *(str(each.batch["request_counts"][name]) for name in ("total", "completed", "failed")),
            str(each.batch["usage"]["output_tokens"]),
            str(owners),
        ]
        for each, owners in zip(result.outcomes, result.owners, strict=True)
    ]
    title = (
        f"Batches, storage: {result.shape.storage}, {result.seconds:.0f} s; "
        f"{result.ends} jobs ended with an answer, {result.decoded_again} tokens decoded again, "
        f"{result.unrecorded} blobs left"
    )
    return Table(title, ["batch", "lines", "output", "errors", "tokens", "owners"], rows)


def _faults_table(result: BatchRunResult) -> Table:
    rows = [[str(fault), str(result.faults[fault])] for fault in BatchFault]
    return Table("Faults", ["fault", "times"], rows)


def _as_json(result: BatchRunResult) -> dict[str, Any]:
    return {
        "settings": asdict(result.shape),
        "seconds": result.seconds,
        "faults": result.faults,
        "batches": [each.batch for each in result.outcomes],
        "owners": result.owners,
        "jobs_ended": result.ends,
        "tokens_decoded_again": result.decoded_again,
        "blobs_left": result.unrecorded,
        "failures": result.failures,
    }

"""A short run of batches under every kind of fault: each line has its result, once.

`make faults ARGS=--batches` is the long run. Nothing here depends on how fast the machine is.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from load_tests.faults.batches.fault_schedule import BatchFault
from load_tests.faults.batches.run import STORAGES, BatchFaultRun, BatchRunShape
from load_tests.faults.batches.storages import HAS_S3, NO_S3


@pytest.mark.parametrize("storage", STORAGES)
def test_each_line_has_one_result(tmp_path: Path, storage: str) -> None:
    if storage == "s3" and not HAS_S3:
        pytest.skip(NO_S3)
    shape = BatchRunShape(700, storage, every_s=1.0, faults=len(BatchFault))
    result = asyncio.run(BatchFaultRun(tmp_path / "run", shape, print).play())
    assert result.failures == []
    assert result.faults.keys() == set(BatchFault)
    assert min(result.owners) > 0
    assert [each.batch["status"] for each in result.outcomes] == [
        "completed",
        "completed",
        "cancelled",
        "expired",
    ]

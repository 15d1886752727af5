"""What is found wrong with the storage of files and with batches."""

from __future__ import annotations

import pytest

from gateway.ops.doctor_route import StorageState, storage_findings
from shared.batches.batch import BatchStatus
from shared.store.batch_records import OpenBatch

GIB = 2**30
GOOD = StorageState(
    error="",
    space=(50 * GIB, 100 * GIB),
    batches=[OpenBatch("batch_1", BatchStatus.IN_PROGRESS, "qwen", 5.0)],
    served=frozenset({"qwen"}),
    ages_s={"batches": 1.0, "files": 500.0, "prune": 500.0},
)
STUCK = OpenBatch("batch_2", BatchStatus.IN_PROGRESS, "qwen", 1800.0)


@pytest.mark.parametrize(
    "state",
    [
        GOOD,
        GOOD._replace(space=None),
        GOOD._replace(ages_s={}, batches=[]),  # no maintenance yet, and nothing to do for it
        GOOD._replace(ages_s={"batches": 1.0, "prune": 10.0}),  # `files` comes next
        GOOD._replace(batches=[STUCK._replace(model="llama")]),  # nobody serves it: it waits
    ],
)
def test_nothing_is_wrong(state: StorageState) -> None:
    assert {each.state for each in storage_findings(state)} == {"ok"}


@pytest.mark.parametrize(
    ("state", "kind", "level", "fact"),
    [
        (GOOD._replace(error="denied"), "storage_unavailable", "problem", "denied"),
        (GOOD._replace(space=(9 * GIB, 100 * GIB)), "storage_full", "warning", "9.0 GiB"),
        (GOOD._replace(space=(0, 0)), "storage_full", "problem", "100%"),
        (GOOD._replace(ages_s={"batches": 1.0, "prune": 61.0}), "storage_not_swept", "warning", ""),
        (GOOD._replace(ages_s=GOOD.ages_s | {"files": 1800.0}), "storage_not_swept", "warning",
         "30 min"),
        (GOOD._replace(ages_s={}), "batches_late", "problem", "1 batch has"),
        (GOOD._replace(ages_s={"batches": 60.0}, batches=[STUCK._replace(idle_s=0)] * 2),
         "batches_late", "problem", "2 batches have"),
        (GOOD._replace(batches=[*GOOD.batches, STUCK]), "batch_stuck", "warning", "batch_2"),
        (GOOD._replace(batches=[STUCK._replace(model="")]), "batch_stuck", "warning", "30 min"),
    ],
)  # fmt: skip
def test_what_is_wrong(state: StorageState, kind: str, level: str, fact: str) -> None:
    (found,) = storage_findings(state)
    assert (found.name, found.state) == (kind, level)
    assert fact in found.text
    assert found.remedy


def test_without_a_storage_only_batches_count() -> None:
    state = GOOD._replace(error="none", ages_s={}, configured=False)
    assert [each.name for each in storage_findings(state)] == ["storage", "batches_late"]

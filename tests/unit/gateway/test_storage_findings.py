"""What is found wrong with the storage of files and with batches."""

from __future__ import annotations

import pytest

from gateway.maintenance import maintenance_tasks
from gateway.ops import doctor_route
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


def test_the_tasks_have_the_names_of_maintenance() -> None:
    tasks = (maintenance_tasks.BATCHES, maintenance_tasks.FILES, maintenance_tasks.PRUNE)
    assert tasks == (doctor_route.BATCHES, doctor_route.FILES, doctor_route.PRUNE)


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
    ("state", "kind", "level", "sentence"),
    [
        (GOOD._replace(error="denied"), "storage_unavailable", "problem",
         "No file can be stored: denied"),
        (GOOD._replace(space=(9 * GIB, 100 * GIB)), "storage_full", "warning",
         "The disk of the storage is 91% full; 9.0 GiB are free."),
        (GOOD._replace(space=(0, 0)), "storage_full", "problem",
         "The disk of the storage is 100% full; 0.0 GiB are free."),
        (GOOD._replace(ages_s={"batches": 1.0, "prune": 61.0}), "storage_not_swept", "warning",
         "Maintenance runs, but so far it has not used the storage of the gateways."),
        (GOOD._replace(ages_s=GOOD.ages_s | {"files": 1800.0}), "storage_not_swept", "warning",
         "Maintenance runs, but for 30 min it has not used the storage of the gateways."),
        (GOOD._replace(ages_s={}), "batches_late", "problem",
         "So far no maintenance process has worked on batches; 1 batch has not ended."),
        (GOOD._replace(ages_s={"batches": 60.0}, batches=[STUCK._replace(idle_s=0)] * 2),
         "batches_late", "problem",
         "For 60.0 s no maintenance process has worked on batches; 2 batches have not ended."),
        (GOOD._replace(batches=[*GOOD.batches, STUCK]), "batch_stuck", "warning",
         "batch_2 has not advanced for 30 min, though workers serve its model."),
        (GOOD._replace(batches=[STUCK._replace(model="")]), "batch_stuck", "warning",
         "batch_2 has not advanced for 30 min, though workers serve its model."),
    ],
)  # fmt: skip
def test_what_is_wrong(state: StorageState, kind: str, level: str, sentence: str) -> None:
    (found,) = storage_findings(state)
    assert (found.name, found.state, found.text) == (kind, level, sentence)
    assert found.remedy


def test_without_a_storage_only_batches_count() -> None:
    state = GOOD._replace(error="none", ages_s={}, configured=False)
    assert [each.name for each in storage_findings(state)] == ["storage", "batches_late"]

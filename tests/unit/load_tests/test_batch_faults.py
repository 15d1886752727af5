"""The checks of batches under faults: each kind of damage is found, and a whole batch has none."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.batches.owner import LOCK_S
from load_tests.faults.batches.batch_input import BatchInput
from load_tests.faults.batches.fault_schedule import BatchFault, plan
from load_tests.faults.batches.history import completions
from load_tests.faults.batches.storages import FolderStorage
from load_tests.faults.batches.sums import BatchOutcome, several_of_an_owner, twice_generated


def answer(text: str) -> dict[str, Any]:
    return {"choices": [text], "usage": {"prompt_tokens": 3, "completion_tokens": 5}}


def output_line(custom_id: str) -> dict[str, Any]:
    body = {**answer(custom_id), "id": "chatcmpl-1", "created": 7}
    response = {"status_code": 200, "request_id": f"job_{custom_id}", "body": body}
    return {"custom_id": custom_id, "response": response, "error": None}


def outcome(status: str = "completed") -> Any:
    """Answers to a and b, a refused line c, and an endless one, d, of a batch that is cut off."""
    cut_off = status != "completed"
    lines = BatchInput(
        b"",
        {name: answer(name) for name in "ab"},
        frozenset("c"),
        frozenset("d") if cut_off else frozenset(),
    )
    errors: list[dict[str, Any]] = [
        {"custom_id": "c", "response": {"status_code": 400}, "error": None}
    ]
    if cut_off:
        errors.append({"custom_id": "d", "response": None, "error": {"code": f"batch_{status}"}})
    counts = {"total": 3 + cut_off, "completed": 2, "failed": 1 + cut_off}
    usage = {"input_tokens": 6, "output_tokens": 10}
    batch = {"status": status, "request_counts": counts, "usage": usage}
    return BatchOutcome(lines, status, batch, [output_line("a"), output_line("b")], errors)


@pytest.mark.parametrize("status", ["completed", "cancelled", "expired"])
def test_a_whole_batch_has_no_failure(status: str) -> None:
    assert outcome(status).failures() == []


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda o: o.batch.update(status="expired"), "it is expired, not completed"),
        (lambda o: o.output.pop(), "1 lines without a result: b"),
        (lambda o: o.output.append(output_line("a")), "1 lines with several results: a"),
        (lambda o: o.output.append(output_line("x")), "1 results of no line: x"),
        (lambda o: o.output.append(output_line("c")), "1 lines that must be refused: c"),
        (lambda o: o.batch["request_counts"].update(failed=2), "its counts are"),
        (lambda o: o.batch["usage"].update(output_tokens=11), "its usage is"),
        (lambda o: o.output[0]["response"]["body"].update(choices=["b"]), "1 wrong answers: a"),
        (lambda o: o.errors[0].update(error={"code": "worker_lost"}), "1 wrong errors: c"),
        (lambda o: o.errors[0]["response"].update(status_code=500), "1 wrong errors: c"),
    ],
)
def test_damage_is_found(damage: Callable[[Any], object], found: str) -> None:
    damaged = copy.deepcopy(outcome())
    damage(damaged)
    assert any(line.startswith(found) for line in damaged.failures()), damaged.failures()


def test_a_line_that_is_cut_off_has_the_code_of_its_batch() -> None:
    damaged = copy.deepcopy(outcome("cancelled"))
    damaged.errors[1]["error"]["code"] = "batch_expired"
    assert [line.partition(":")[0] for line in damaged.failures()] == ["1 wrong errors"]


@pytest.mark.parametrize(
    ("ends", "found"),
    [
        ({"job_a": 1, "job_b": 1}, []),
        ({"job_a": 2, "job_b": 1}, ["1 jobs were generated twice: job_a"]),
        (
            {"job_a": 1, "job_b": 1, "job_x": 1},
            ["1 jobs were generated, and no output has them: job_x"],
        ),
        ({"job_a": 1}, ["1 answers of jobs that never ended: job_b"]),
    ],
)
def test_each_job_is_generated_once(ends: Mapping[str, int], found: list[str]) -> None:
    assert twice_generated(ends, [outcome()]) == found


def test_an_owner_leaves_one_blob_of_each_kind() -> None:
    left = ["batches/b/output-1-4", "batches/b/errors-1-4", "batches/b/output-2-9"]
    assert several_of_an_owner(left) == []
    wrong = several_of_an_owner([*left, "batches/b/output-2-8"])
    assert wrong == ["1 owners left several blobs: batches/b/output-2"]


def test_ends_are_read_from_the_append_only_file(tmp_path: Path) -> None:
    end = b"$18\r\nflotilla:{0}:job:job_0a\r\n$5\r\nstate\r\n$9\r\n%b\r\n"
    folder = tmp_path / "appendonlydir"
    folder.mkdir()
    (folder / "empty.incr.aof").touch()
    begun, done = b"*1\r\n$5\r\nMULTI\r\n" + end % b"completed", b"*1\r\n$4\r\nEXEC\r\n"
    (folder / "a.incr.aof").write_bytes(
        begun + done + end % b"cancelled" + done + begun + begun + done
    )
    assert completions(tmp_path) == {"job_0a": 2}, "one was cut off by a kill"


def test_faults_depend_on_the_seed_alone_and_begin_with_one_of_each() -> None:
    drawn = list(itertools.islice(plan("1", 2.0), 200))
    assert drawn == list(itertools.islice(plan("1", 2.0), 200))
    assert drawn != list(itertools.islice(plan("2", 2.0), 200))
    assert {each.fault for each in drawn[: len(BatchFault)]} == set(BatchFault)
    assert all(each.lasts_s > LOCK_S for each in drawn if each.fault is BatchFault.OWNER)


def test_a_folder_comes_back_with_what_it_had(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "a").write_text("a")
    storage = FolderStorage(folder)
    for written in (False, True):
        storage.take_away()
        assert not folder.exists()
        if written:
            folder.mkdir()
            (folder / "b").write_text("b")
        storage.bring_back()
        assert [each.name for each in folder.iterdir()] == ["a"]

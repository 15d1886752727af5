"""Whether what a batch has made is all that it should have made, each part once. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from load_tests.faults.batches.batch_input import BatchInput, Json, comparable

_CODES = {"cancelled": "batch_cancelled", "expired": "batch_expired"}
"""By the status of a batch: the code of lines without an answer."""
_MOST = 5
"""Ids that one message names."""


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """What became of a batch, as its client sees it."""

    input: BatchInput
    wanted: str
    """The status with which it should end."""
    batch: Json
    """OpenAI's object."""
    output: Sequence[Json]
    """The lines of the file."""
    errors: Sequence[Json]

    @property
    def job_ids(self) -> list[str]:
        """The jobs whose answers are in the output."""
        return [line["response"]["request_id"] for line in self.output]

    def failures(self) -> list[str]:
        """Return what is wrong, in words."""
        status = self.batch["status"]
        found = [f"it is {status}, not {self.wanted}"] if status != self.wanted else []
        return [*found, *self._wrong_ids(), *self._wrong_counts(), *self._wrong_lines()]

    def _wrong_ids(self) -> Iterable[str]:
        ids = Counter(line["custom_id"] for line in [*self.output, *self.errors])
        inputs = self.input.ids
        yield from _named("lines without a result", inputs - ids.keys())
        yield from _named("results of no line", ids.keys() - inputs)
        yield from _named(
            "lines with several results", [n for n, times in ids.items() if times > 1]
        )
        yield from _named("lines that must be refused", _ids(self.output) & self.input.refused)

    def _wrong_counts(self) -> Iterable[str]:
        counts = self.batch["request_counts"]
        right = {
            "total": len(self.input.ids),
            "completed": len(self.output),
            "failed": len(self.errors),
        }
        if counts != right:
            yield f"its counts are {counts}, its files have {right}"
        used: Counter[str] = Counter()
        for line in self.output:
            used.update(_usage(line["response"]["body"]))
        reported = {name: self.batch["usage"][name] for name in ("input_tokens", "output_tokens")}
        if reported != {name: used[name] for name in reported}:
            yield f"its usage is {reported}, that of its lines {dict(used)}"

    def _wrong_lines(self) -> Iterable[str]:
        answers = self.input.answers
        yield from _named(
            "wrong answers",
            [
                line["custom_id"]
                for line in self.output
                if line["response"]["status_code"] != 200
                or comparable(line["response"]["body"]) != answers.get(line["custom_id"])
            ],
        )
        code = _CODES.get(self.batch["status"])
        wrong = [line for line in self.errors if not self._is_right_error(line, code)]
        yield from _named("wrong errors", [f"{line['custom_id']}: {line}" for line in wrong])

    def _is_right_error(self, line: Json, code: str | None) -> bool:
        if code and line["error"]:
            return bool(line["error"]["code"] == code and line["response"] is None)
        refused = line["custom_id"] in self.input.refused
        return refused and not line["error"] and line["response"]["status_code"] == 400


def twice_generated(ends: Mapping[str, int], outcomes: Sequence[BatchOutcome]) -> list[str]:
    """Return what is wrong with how often jobs were generated to their end.

    `ends`: of each job, how often (history.py).
    """
    answered = {job_id for each in outcomes for job_id in each.job_ids}
    return [
        *_named("jobs were generated twice", _several(ends)),
        *_named("jobs were generated, and no output has them", ends.keys() - answered),
        *_named("answers of jobs that never ended", answered - ends.keys()),
    ]


def several_of_an_owner(blobs: Iterable[str]) -> list[str]:
    """Return what is wrong with the blobs of batches that no record names.

    An owner leaves at most one of the output and one of the errors: those of its last commit.
    """
    by_owner = Counter(name.rpartition("-")[0] for name in blobs)
    return list(_named("owners left several blobs", _several(by_owner)))


def _several(times: Mapping[str, int]) -> list[str]:
    return [name for name, number in times.items() if number > 1]


def _ids(lines: Iterable[Json]) -> set[str]:
    return {line["custom_id"] for line in lines}


def _usage(answer: Json) -> dict[str, int]:
    usage: Mapping[str, Any] = answer["usage"]
    return {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]}


def _named(what: str, names: Iterable[str]) -> Iterable[str]:
    found = sorted(names)
    if found:
        yield f"{len(found)} {what}: {', '.join(found[:_MOST])}"

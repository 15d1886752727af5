"""The oracle of the kill runs: each kind of damage fails a run, and an undamaged run passes."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

from load_tests.faults.batches.batch_input import BatchInput
from load_tests.faults.batches.sums import BatchOutcome
from load_tests.faults.kills.kill_run import RunResult, RunShape
from load_tests.faults.kills.kill_schedule import KillKind
from load_tests.faults.kills.ledger_check import Logged, compare
from load_tests.faults.kills.report import failures
from load_tests.faults.kills.tally import Tally
from load_tests.oracle.answer import Answer
from load_tests.oracle.observation import End, Observation
from load_tests.oracle.record_check import contradictions
from load_tests.oracle.request_classes import CLASSES, Mode, make_request
from load_tests.oracle.stored_job import StoredJob
from load_tests.oracle.undisturbed import Expected
from shared.job.job import Attempt, Job
from shared.job.log import Entry, Position
from shared.job.states import JobState
from shared.store.ended import Ended, Owner

WORDS = ("[simulated]", " tide", " wave", " rope", " ship")
USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
END = b'{"id":"chatcmpl-1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'


def chunk(text: str, *, created: int = 1, ids: list[int] | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "token_ids": ids}
    return json.dumps({"id": "chatcmpl-1", "created": created, "choices": [choice]}).encode()


PARTS = [*map(chunk, WORDS), END, b"[DONE]"]


def answer_of(parts: list[bytes]) -> Answer:
    answer = Answer(status=200, usage=dict(USAGE))
    for part in parts:
        answer.add_chunk(part)
    return answer


def observed(parts: list[bytes] = PARTS, end: End = End.COMPLETE, **changes: Any) -> Observation:
    """A stream of five tokens, as a client has seen it."""
    texts, tokens = {0: "".join(WORDS)}, Counter({(0, 0): len(WORDS)})
    expected = Expected(answer_of(PARTS), tokens, texts, prompt_tokens=7)
    request = make_request(CLASSES[0], random.Random(1), "tag", Mode.CALL)
    seen = Observation(request, expected, 0.0, 9.0, end, job_id="job_1", answer=answer_of(parts))
    for name, value in changes.items():
        setattr(seen, name, value)
    return seen


FIRST, SECOND = Attempt("w-1", 1.0, 2.0, "worker_lost"), Attempt("w-2", 2.0, 3.0, "completed")
TOKENS = [[0, 0, [n], word] for n, word in enumerate(WORDS)]
LOG = (
    Entry(Position(9, 1), [[0, 7], TOKENS[0]], ()),
    Entry(Position(9, 2), TOKENS[1:], ()),
    Entry(Position(9, 3), None, (), "completed", (5, 1)),
)


def stored(*entries: Entry, ttl_ms: int = 1000, lacks: bool = False, **changes: Any) -> StoredJob:
    """The record and the log of its job, which a second worker has continued."""
    values: dict[str, Any] = {field.name: None for field in fields(Job)}  # what is not checked
    values |= {"id": "job_1", "state": JobState.COMPLETED, "attempts": (FIRST, SECOND)}
    job = Job(**(values | {"usage": USAGE} | changes))
    return StoredJob(job, entries or LOG, lacks_entries=lacks, ttl_ms=ttl_ms, log_ttl_ms=1000)


RECORD = stored()


def damage(tally: Tally) -> dict[str, int]:
    """What the run that was counted has failed by."""
    names = ("tokens_lost", "tokens_repeated", "streams_cut", "failed", "wrong", "ledger_errors")
    found = {name: count for name in names if (count := getattr(tally, name))}
    result = RunResult(RunShape(kills=1, seed=1, rate=1.0), tally, 1.0, ["chat"])
    assert bool(failures(result)) == bool(found)
    return found


def run(seen: Observation, record: StoredJob | None = RECORD) -> dict[str, int]:
    tally = Tally()
    tally.add(seen, record)
    return damage(tally)


def test_an_undamaged_run_passes() -> None:
    assert run(observed()) == {}
    assert run(observed([part.replace(b'"created": 1', b'"created": 9') for part in PARTS])) == {}


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        ([*PARTS[:2], *PARTS[3:]], {"tokens_lost": 1, "wrong": 1}),
        ([*PARTS[:3], *PARTS[5:]], {"tokens_lost": 2, "wrong": 1}),
        ([*PARTS[:3], *PARTS[2:]], {"tokens_repeated": 1, "wrong": 1}),
        ([*PARTS[:5], *PARTS], {"tokens_repeated": 5, "wrong": 1}),
        ([*PARTS[:4], chunk(" lane"), *PARTS[5:]], {"tokens_lost": 1, "wrong": 1}),
        ([PARTS[1], PARTS[0], *PARTS[2:]], {"wrong": 1}),
        ([*PARTS[:4], PARTS[4][:-9], *PARTS[5:]], {"tokens_lost": 1, "wrong": 1}),
        ([*PARTS[:5], END.replace(b"stop", b"length"), b"[DONE]"], {"tokens_lost": 1, "wrong": 1}),
        ([*PARTS[:4], chunk(" ship", created=2), *PARTS[5:]], {"wrong": 1}),
        (PARTS[:-1], {"wrong": 1}),
    ],
)
def test_damage_of_a_stream(parts: list[bytes], found: dict[str, int]) -> None:
    assert run(observed(parts)) == found


@pytest.mark.parametrize(
    "changes",
    [
        {"out_of_order": 1},
        {"job_id": ""},
        {"request": make_request(CLASSES[0], random.Random(1), "tag", Mode.EVENTS)},  # no end
        {"job_texts": {0: "".join(WORDS[:4])}},
        {"answer": replace(answer_of(PARTS), usage=USAGE | {"completion_tokens": 4})},
    ],
)
def test_other_damage_of_an_answer(changes: dict[str, Any]) -> None:
    assert run(observed(**changes)) == {"wrong": 1}


@pytest.mark.parametrize("end", [End.CUT, End.FAILED, End.HUNG])
def test_a_stream_that_does_not_end_well_has_lost_only_what_others_came_after(end: End) -> None:
    assert run(observed(PARTS[:3], end)) == {"streams_cut": 1, "wrong": 1}
    lost = {"tokens_lost": 1, "streams_cut": 1, "wrong": 1}
    assert run(observed([PARTS[0], PARTS[2]], end)) == lost


@pytest.mark.parametrize(
    "record",
    [
        None,
        stored(ttl_ms=-1),
        stored(lacks=True),
        stored(state=JobState.IN_PROGRESS),
        stored(*LOG[:2], LOG[2]._replace(event="failed"), state=JobState.FAILED),
        stored(usage=USAGE | {"completion_tokens": 4}),
        stored(attempts=(FIRST, SECOND._replace(started_at=1.5))),
        stored(LOG[0], LOG[2]),  # a token of it is lost
        stored(
            *LOG[:2],
            LOG[1]._replace(position=Position(9, 3)),
            LOG[2]._replace(position=Position(9, 4)),
        ),  # repeated
        stored(LOG[0], LOG[1]._replace(journal=[*TOKENS[1:4], [0, 0, [4], " lane"]]), LOG[2]),
        stored(*LOG[:2]),  # it has no end
        stored(*LOG, LOG[2]._replace(position=Position(9, 4))),  # two
        stored(*LOG[:2], LOG[2]._replace(event="failed")),
        stored(*LOG[:2], LOG[2]._replace(details=(6, 1))),
        stored(
            LOG[0],
            LOG[1]._replace(position=Position(9, 3)),
            LOG[2]._replace(position=Position(9, 4)),
        ),
    ],
)
def test_damage_of_a_record(record: StoredJob | None) -> None:
    assert run(observed(), record) == {"wrong": 1}


def test_where_redis_may_lose_records_one_must_not_contradict_the_answer() -> None:
    assert contradictions(observed(), None) == contradictions(observed(), RECORD) == []
    assert contradictions(observed(), stored(state=JobState.FAILED))
    other = LOG[0]._replace(journal=[[0, 7], [0, 0, [0], "[other]"]])
    assert contradictions(observed(PARTS[:2], End.CUT), stored(other, state=JobState.FAILED))


def test_chunks_of_vllm_are_compared_by_the_tokens_that_they_hold_together() -> None:
    def merged(*pairs: tuple[list[int], str]) -> Observation:
        seen = observed([*(chunk(text, ids=ids) for ids, text in pairs), END, b"[DONE]"])
        right = [chunk("a", ids=[1]), chunk("b", ids=[2]), chunk("c", ids=[3]), END, b"[DONE]"]
        seen.expected = replace(seen.expected, answer=answer_of(right), joined=True)
        return seen

    assert run(merged(([1, 2], "ab"), ([3], "c"))) == {}
    assert run(merged(([1], "a"), ([3], "c"))) == {"tokens_lost": 1, "wrong": 1}
    assert run(merged(([1, 2], "ab"), ([2, 3], "bc"))) == {"tokens_repeated": 1, "wrong": 1}
    assert run(merged(([1, 9, 3], "azc"))) == {"tokens_lost": 1, "wrong": 1}


OWNER = Owner("t", "key_1", "m")


def ledger(**changes: Any) -> Ended:
    values: dict[str, Any] = dict.fromkeys(Ended._fields, 0)
    values |= {
        "entry": "1-0",
        "id": "job_1",
        "owner": OWNER,
        "prompt_tokens": 5,
        "output_tokens": 7,
    }
    return Ended(**(values | changes))


@pytest.mark.parametrize(
    "entries",
    [[], [ledger()] * 2, [ledger(output_tokens=8)], [ledger(owner=Owner("t", "", "m"))]],
)
def test_damage_of_the_ledger(entries: list[Ended]) -> None:
    tally, logged = Tally(), {"job_1": Logged(OWNER, 5, 7)}
    tally.add(observed(), RECORD)
    tally.add_ledger(compare([ledger()], logged))
    assert damage(tally) == {}
    tally.add_ledger(compare(entries, logged))
    assert damage(tally) == {"ledger_errors": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {"leftovers": {"queue entries": 2}},
        {"ended_by_themselves": ["w-1 ended with 1"]},
        {"jobs": Counter()},
        {"pauses": {**Tally().pauses, KillKind.WORKER: [0.2] * 90 + [4.0] * 10}},
    ],
)
def test_damage_that_no_request_has(changes: dict[str, Any]) -> None:
    tally = Tally()
    tally.add(observed(), RECORD)
    for name, value in changes.items():
        setattr(tally, name, value)
    assert len(failures(RunResult(RunShape(kills=1, seed=1, rate=1.0), tally, 1.0, ["chat"]))) == 1


def line(name: str) -> dict[str, Any]:
    body = {"choices": [name], "usage": {"prompt_tokens": 3, "completion_tokens": 5}}
    response = {"status_code": 200, "request_id": f"job_{name}", "body": body}
    return {"custom_id": name, "response": response, "error": None}


def batch() -> BatchOutcome:
    """A completed batch: answers to a and b, and c, which is refused."""
    right = {name: line(name)["response"]["body"] for name in "ab"}
    counts = {"total": 3, "completed": 2, "failed": 1}
    usage = {"input_tokens": 6, "output_tokens": 10}
    found = {"status": "completed", "request_counts": counts, "usage": usage}
    refused = {"custom_id": "c", "response": {"status_code": 400}, "error": None}
    lines = BatchInput(b"", right, frozenset("c"), frozenset())
    return BatchOutcome(lines, "completed", found, [line("a"), line("b")], [refused])


@pytest.mark.parametrize(
    "damage_it",
    [
        lambda found: found.output.pop(),
        *(lambda found, name=name: found.output.append(line(name)) for name in "axc"),
        lambda found: found.output[0]["response"]["body"].update(choices=["b"]),
        lambda found: found.errors[0].update(error={"code": "worker_lost"}),
        lambda found: found.batch.update(status="expired"),
        lambda found: found.batch["request_counts"].update(failed=2),
        lambda found: found.batch["usage"].update(output_tokens=11),
    ],
)
def test_damage_of_a_batch(damage_it: Callable[[BatchOutcome], object]) -> None:
    found = batch()
    assert found.failures() == []
    damage_it(found)
    assert found.failures()

"""The parts of `make faults` that need no fleet: outcomes, rows, schedules, hostile requests."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from load_tests.clients.expected_text import expected_text
from load_tests.clients.token_difference import DifferenceKind, find_difference, tokens_of
from load_tests.faults.call_outcome import CallEnd, CallOutcome
from load_tests.faults.checked_request import CheckedRequest
from load_tests.faults.clients import Clients
from load_tests.faults.hostile.raw_http import RawResponse, read_answer, request
from load_tests.faults.hostile.requests import fill, summarize
from load_tests.faults.injected.row import fault_table, make_row, notified_after, percentile
from load_tests.faults.schedules.schedule import PauseTarget, draw, lost_lease

RIGHT = [f"t{n}" for n in range(40)]


@pytest.mark.parametrize(
    ("received", "complete", "kind"),
    [
        (RIGHT, True, None),
        (RIGHT[:14], False, None),
        ([], False, None),
        (RIGHT[:14], True, DifferenceKind.SHORT),
        ([], True, DifferenceKind.SHORT),
        (RIGHT[:14] + RIGHT, True, DifferenceKind.SPLICED),
        (RIGHT[:14] + RIGHT[:3], False, DifferenceKind.SPLICED),
        (RIGHT[:30] + RIGHT[20:], True, DifferenceKind.REPEATED),
        (RIGHT[:30] + RIGHT[29:], True, DifferenceKind.REPEATED),
        ([*RIGHT, "t39"], True, DifferenceKind.REPEATED),
        ([*RIGHT, "more"], True, DifferenceKind.LONG),
        (RIGHT[:14] + RIGHT[15:], True, DifferenceKind.MISSING),
        (RIGHT[1:], True, DifferenceKind.MISSING),
        ([*RIGHT[:14], "other", *RIGHT[15:]], True, DifferenceKind.FOREIGN),
        (["other"], False, DifferenceKind.FOREIGN),
    ],
)
def test_a_difference_has_a_kind(
    received: list[str], complete: bool, kind: DifferenceKind | None
) -> None:
    found = find_difference(received, RIGHT, complete=complete)
    assert (found and found.kind) == kind


def test_a_splice_whose_first_token_is_right_by_chance_is_a_splice() -> None:
    right = ["start", *RIGHT[1:14], "start", *RIGHT[15:]]
    received = right[:14] + right
    found = find_difference(received, right, complete=True)
    assert found is not None
    assert (found.kind, found.at) == (DifferenceKind.SPLICED, 15)


def test_a_text_without_its_beginning_misses_tokens() -> None:
    found = find_difference(tokens_of(" t5 t6"), RIGHT, complete=False)
    assert found is not None
    assert (found.kind, found.at) == (DifferenceKind.MISSING, 0)


def test_a_difference_names_its_position() -> None:
    found = find_difference(RIGHT[:30] + RIGHT[20:], RIGHT, complete=True)
    assert str(found) == "repeated after 30, 50 tokens instead of 40"


def outcome(
    end: CallEnd = CallEnd.COMPLETE, text: str = " ".join(RIGHT), **fields: Any
) -> CallOutcome:
    request = CheckedRequest("tag", {"stream": True}, tuple(RIGHT))
    given: dict[str, Any] = {"is_job": False, "began": 0.0, "job_id": "j", **fields}
    found = CallOutcome(request, end=end, text=text, **given)
    found.check_tokens()
    return found


def record(text: str, state: str = "completed", tokens: int = len(RIGHT)) -> dict[str, Any]:
    return {"state": state, "text": text, "usage": {"completion_tokens": tokens}}


ALL, PART = " ".join(RIGHT), " ".join(RIGHT[:14])


@pytest.mark.parametrize(
    ("seen", "kept", "wrong", "behind"),
    [
        (outcome(), record(ALL), False, 0),
        (outcome(), None, False, 0),
        (outcome(), record(PART), True, 0),
        (outcome(), record(ALL, tokens=39), True, 0),
        (outcome(), record(ALL, state="failed"), True, 0),
        (outcome(CallEnd.FAILED, PART), record(PART, "failed", 14), False, 0),
        (outcome(CallEnd.CUT, PART), record(ALL), False, 0),
        (outcome(CallEnd.CUT, PART), record("t0 t1", "failed", 2), False, 12),
        (outcome(CallEnd.FAILED, PART), record("t0 t2", "failed", 2), True, 12),
    ],
)
def test_an_answer_is_compared_with_its_record(
    seen: CallOutcome, kept: dict[str, Any] | None, wrong: bool, behind: int
) -> None:
    seen.check_record(kept)
    assert bool(seen.errors) == wrong
    assert seen.record_behind == behind


@pytest.mark.parametrize(
    ("share", "value"), [(0.0, 1.0), (0.5, 2.0), (0.75, 3.0), (0.9, 4.0), (1.0, 4.0)]
)
def test_a_percentile_is_one_of_the_values(share: float, value: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], share) == value


def test_the_percentile_of_no_values_is_nan() -> None:
    assert math.isnan(percentile([], 0.5))


@pytest.mark.parametrize(
    ("last_token", "ended", "seconds"),
    [
        (9.9, 11.0, 1.0),  # the fault at 10 stopped it
        (9.9, 21.0, 11.0),  # the fault at 20 came later
        (10.2, 11.0, 1.0),  # tokens in flight arrived
        (10.2, 21.0, 11.0),
        (15.0, 21.0, 1.0),  # it survived the fault at 10
        (1.0, 2.0, None),
    ],
)
def test_the_delay_of_an_error_counts_from_the_fault_that_caused_it(
    last_token: float, ended: float, seconds: float | None
) -> None:
    broken = outcome(CallEnd.FAILED, PART, last_token=last_token, ended=ended)
    assert notified_after([10.0, 20.0], broken) == seconds


def test_a_row_counts_every_outcome_once() -> None:
    outcomes = [
        outcome(longest_silence_s=0.1),
        outcome(CallEnd.FAILED, PART, code="worker_lost", ended=2.5, longest_silence_s=2.0),
        outcome(CallEnd.HUNG, PART, ended=40.0, longest_silence_s=38.0),
        outcome(CallEnd.REFUSED, "", code="redis_unavailable"),
        outcome(is_job=True),
        outcome(CallEnd.GONE, "", is_job=True, code="gone", ended=3.0),
        outcome(text=" ".join(RIGHT[:14] + RIGHT)),
    ]
    row = make_row("a fault", [1.0], outcomes, {"queue entries": 1}, ["a note"])
    assert (row.streams, row.complete, row.jobs) == (4, 2, 2)
    assert row.broken == {"worker_lost": 1, "hung": 1}
    assert row.refused == {"redis_unavailable": 1}
    assert row.failed == {"gone": 1}
    assert row.wrong == {"spliced (stream)": 1}
    assert row.silence_s == (0.1, 38.0, 38.0)
    assert row.notified_s == (1.5, 2.0)
    assert row.notes[0] == "a note"
    assert "| a fault, 1 | 4 | 2 | 1 worker_lost, 1 hung |" in fault_table([row]).markdown()


def test_a_schedule_depends_on_its_seed_alone() -> None:
    drawn = [draw(f"1-{n}", 0.9, 2) for n in range(300)]
    assert drawn == [draw(f"1-{n}", 0.9, 2) for n in range(300)]
    assert len(set(drawn)) == 300
    pauses = [pause for schedule in drawn for pause in schedule.pauses]
    assert {pause.target for pause in pauses} == set(PauseTarget)
    assert {pause.n for pause in pauses} == {0, 1}
    assert max(pause.seconds for pause in pauses) <= 2 * 0.9 * 1.1
    assert not any(schedule.pauses[0].overlaps for schedule in drawn)


def test_a_fixed_schedule_scales_with_the_lease() -> None:
    redis, worker = lost_lease(1.5).pauses
    assert (redis.target, redis.seconds) == (PauseTarget.REDIS, 0.025)
    assert (worker.target, worker.seconds, worker.since_renewal) == (PauseTarget.WORKER, 1.25, True)


def stream_of(tokens: list[str], *, done: bool = True) -> bytes:
    choices: list[dict[str, Any]] = [
        {"delta": {"content": token if n == 0 else f" {token}"}, "finish_reason": None}
        for n, token in enumerate(tokens)
    ]
    if done and choices:
        choices[-1]["finish_reason"] = "length"
    events = [json.dumps({"choices": [choice]}) for choice in choices]
    return "".join(f"data: {event}\n\n" for event in (*events, *["[DONE]"] * done)).encode()


@pytest.mark.parametrize(
    ("answer", "end", "code", "wrong"),
    [
        (lambda t: httpx.Response(200, content=stream_of(t)), CallEnd.COMPLETE, "", False),
        (
            lambda t: httpx.Response(200, content=stream_of(t[:3], done=False)),
            CallEnd.CUT,
            "",
            False,
        ),
        (lambda t: httpx.Response(200, content=stream_of(t[:5])), CallEnd.COMPLETE, "", True),
        (lambda t: httpx.Response(200, content=stream_of(t[:3] + t)), CallEnd.COMPLETE, "", True),
        (
            lambda t: httpx.Response(
                200,
                content=stream_of(t[:3], done=False) + b'data: {"error": {"code": "lost"}}\n\n',
            ),
            CallEnd.FAILED,
            "lost",
            False,
        ),
        (
            lambda t: httpx.Response(503, json={"error": {"code": "full"}}),
            CallEnd.REFUSED,
            "full",
            0,
        ),
        (lambda t: httpx.Response(502, text="?"), CallEnd.REFUSED, "502", False),
    ],
)
async def test_a_client_records_how_its_stream_ended(
    answer: Callable[[list[str]], httpx.Response], end: CallEnd, code: str, wrong: bool
) -> None:
    async def respond(request: httpx.Request) -> httpx.Response:
        return answer(tokens_of(await expected_text(json.loads(request.content))))

    clients = Clients(["http://fleet"], transport=httpx.MockTransport(respond))
    found = await clients.call("tag", tokens=12)
    await clients.close()
    assert (found.end, found.code, bool(found.errors)) == (end, code, wrong)
    assert clients.outcomes == [found]


async def test_a_client_polls_its_job_to_the_end() -> None:
    polled = iter(["queued", "in_progress", "completed"])

    async def respond(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return httpx.Response(202, json={"id": "j1"})
        state = next(polled)
        text = await expected_text(asked) if state == "completed" else ""
        return httpx.Response(200, json={"state": state, "text": text})

    clients = Clients(["http://fleet"], transport=httpx.MockTransport(respond))
    asked: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Say something. tag"}],
        "max_tokens": 12,
        "ignore_eos": True,
    }
    found = await clients.call("tag", tokens=12, stream=False, job=True)
    await clients.close()
    assert (found.end, found.job_id, found.errors) == (CallEnd.COMPLETE, "j1", [])


async def test_a_job_that_no_longer_exists_is_gone() -> None:
    async def respond(request: httpx.Request) -> httpx.Response:
        return httpx.Response(202 if request.method == "POST" else 404, json={"id": "j1"})

    clients = Clients(["http://fleet"], transport=httpx.MockTransport(respond))
    found = await clients.call("tag", tokens=12, stream=False, job=True)
    await clients.close()
    assert (found.end, found.code) == (CallEnd.GONE, "gone")


@pytest.mark.parametrize(
    ("member", "name", "value"),
    [
        ('"x": [{}...]', "x", {}),
        ('"x": [[]...]', "x", []),
        ('"prompt": ["a"...]', "prompt", "a"),
        ('"messages": [{"role":"user"}...]', "messages", {"role": "user"}),
    ],
)
def test_a_large_body_is_json_of_almost_the_maximum_size(
    member: str, name: str, value: Any
) -> None:
    body = fill(member, "some-model")
    found = json.loads(body)
    assert 8_300_000 < len(body) <= 8 << 20
    assert found["model"] == "some-model"
    assert found[name][0] == found[name][-1] == value


def test_a_large_object_has_different_keys() -> None:
    body = fill('"x": {"k#":0...}', "some-model")
    assert 8_300_000 < len(body) <= 8 << 20
    assert len(json.loads(body)["x"]) == body.count(b'"k')


def test_responses_are_summarized() -> None:
    answers = [
        RawResponse("200", 1.0, 10),
        RawResponse("200", 2.5, 8_000_000),
        RawResponse("401", 1.0, 10),
    ]
    assert summarize(answers) == "2 x 200, 401 in 2.5 s, 8.0 MB sent"
    refusal = b'{"error": {"message": "No a|b\\nhere."}}'
    assert (
        summarize([RawResponse("400", 1.0, 10, refusal)])
        == "400 (No a/b here.) in 1.0 s, 0.0 MB sent"
    )


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc", ("200", b"abc")),
        (b"HTTP/1.1 431 Too Large\r\nconnection: close\r\n\r\n", ("431", b"")),
        (b"HTTP/1.1 20", ("closed", b"")),
        (b"", ("closed", b"")),
    ],
)
def test_a_raw_response_is_read(sent: bytes, answer: tuple[str, bytes]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(sent)
        theirs.close()
        assert read_answer(ours) == answer


def test_a_request_has_an_api_key_unless_it_is_none() -> None:
    assert b"authorization: Bearer " in request("GET", "/jobs")
    assert b"authorization" not in request("GET", "/jobs", key=None, headers={"x-a": "b"})
    assert request("POST", "/jobs", b"{}").endswith(
        b"application/json\r\n" + b"authorization: Bearer key-of-the-test\r\n\r\n{}"
    )

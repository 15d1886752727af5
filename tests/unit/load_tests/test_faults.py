"""The parts of `make faults` that need no fleet: clients, rows, schedules, hostile requests."""

from __future__ import annotations

import json
import math
import random
import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from load_tests.clients.client_group import ClientGroup
from load_tests.clients.gateways import Gateways
from load_tests.clients.trial import errors_of
from load_tests.faults.checked_call import CheckedCall
from load_tests.faults.hostile.anonymous_attacks import fill
from load_tests.faults.hostile.attack import summarize
from load_tests.faults.hostile.raw_http import RawResponse, read_answer, request
from load_tests.faults.injected.row import fault_table, make_row, notified_after
from load_tests.faults.schedules.schedule import PauseTarget, draw, lost_lease
from load_tests.harness.spread import percentile
from load_tests.oracle.observation import End, Observation
from load_tests.oracle.request_classes import Mode, Request, chat, make_request
from load_tests.oracle.request_source import RequestSource


async def asked(mode: Mode = Mode.CALL, *, stream: bool = True) -> tuple[Request, Any]:
    """A request of 12 tokens, and the answer to it."""
    source = RequestSource([])
    await source.start()
    try:
        request = make_request(chat(12, stream=stream), random.Random(1), "tag", mode)
        return await source.answered(request)
    finally:
        source.close()


def seen(
    expected: Any, end: End = End.COMPLETE, *, mode: Mode = Mode.CALL, **fields: Any
) -> Observation:
    request = make_request(chat(12), random.Random(1), "tag", mode)
    given: dict[str, Any] = {"began": 0.0, "ended": 1.0, "job_id": "j", "end": end, **fields}
    found = Observation(request, expected, **given)
    if found.complete:
        found.answer = expected.answer
    return found


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
    broken = seen(None, End.FAILED, at=[last_token], ended=ended)
    assert notified_after([10.0, 20.0], broken) == seconds


def test_the_silence_of_a_call_counts_from_its_request_to_its_end() -> None:
    call = seen(None, End.CUT, at=[1.0, 1.5, 4.5, 5.0], ended=9.0)
    assert (call.silence_s, call.pause_s) == (4.0, 3.0)
    assert seen(None, End.CUT).pause_s == 0


async def test_a_row_counts_every_call_once() -> None:
    _, expected = await asked()
    twice = seen(expected)
    twice.answer = type(twice.answer)(done=True)
    for data in [*expected.answer.chunks[0], *expected.answer.chunks[0]]:
        twice.answer.add_chunk(data)
    observations = [
        seen(expected, at=[0.9]),
        seen(expected, End.FAILED, code="worker_lost", ended=2.5),
        seen(expected, End.HUNG, ended=40.0),
        seen(expected, End.REFUSED, code="redis_unavailable", job_id=""),
        seen(expected, mode=Mode.POLLED),
        seen(expected, End.FAILED, mode=Mode.POLLED, code="gone", ended=3.0),
        twice,
    ]
    row = make_row("a fault", [1.0], map(CheckedCall, observations), {"queue entries": 1}, ["note"])
    assert (row.streams, row.complete, row.jobs) == (4, 2, 2)
    assert row.broken == {"worker_lost": 1, "hung": 1}
    assert row.refused == {"redis_unavailable": 1}
    assert row.failed == {"gone": 1}
    assert row.wrong == {"streams": 1}
    assert row.silence_s == (1.0, 40.0, 40.0)
    assert row.notified_s == (1.5, 2.0)
    assert row.notes[:2] == ["note", "6 jobs have no record"]
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


async def call(
    respond: Callable[[httpx.Request, Any], httpx.Response],
    mode: Mode = Mode.CALL,
    *,
    stream: bool = True,
) -> Observation:
    """Send one request to a server that answers so; `respond` gets the right answer, too."""
    wanted, expected = await asked(mode, stream=stream)
    transport = httpx.MockTransport(lambda got: respond(got, expected))
    gateways = Gateways(["http://fleet"], timeout_s=5.0, transport=transport)
    ended: list[Observation] = []
    clients = ClientGroup(gateways, ended.append, timeout_s=5.0)
    found = await clients.send(wanted, expected)
    await clients.close()
    assert ended == [found]
    return found


def stream_of(chunks: list[bytes], *, more: bytes = b"data: [DONE]\n\n") -> httpx.Response:
    content = b"".join(b"data: %b\n\n" % chunk for chunk in chunks) + more
    return httpx.Response(200, content=content, headers={"content-type": "text/event-stream"})


ERROR = b'data: {"error": {"code": "lost"}}\n\n'


@pytest.mark.parametrize(
    ("answer", "end", "code", "wrong"),
    [
        (stream_of, End.COMPLETE, "", ""),
        (lambda chunks: stream_of(chunks[:3], more=b""), End.CUT, "", ""),
        (lambda chunks: stream_of(chunks[1:3], more=b""), End.CUT, "", "1 tokens lost"),
        (lambda chunks: stream_of(chunks[:5]), End.COMPLETE, "", "tokens lost"),
        (lambda chunks: stream_of(chunks[:3] + chunks), End.COMPLETE, "", "3 tokens repeated"),
        (lambda chunks: stream_of(chunks[:3], more=ERROR), End.FAILED, "lost", ""),
        (
            lambda chunks: httpx.Response(503, json={"error": {"code": "full"}}),
            End.REFUSED,
            "full",
            "",
        ),
        (lambda chunks: httpx.Response(502, text="?"), End.FAILED, "502", ""),
    ],
)
async def test_a_client_notes_how_its_stream_ended(
    answer: Callable[[list[bytes]], httpx.Response], end: End, code: str, wrong: str
) -> None:
    found = await call(lambda got, expected: answer(list(*expected.answer.chunks.values())))
    assert (found.end, found.code) == (end, code)
    errors = errors_of(found, None, strict=False)
    assert wrong in "; ".join(errors)
    assert bool(errors) == bool(wrong)


async def test_a_server_that_can_not_be_reached_refuses() -> None:
    def respond(got: httpx.Request, expected: Any) -> httpx.Response:
        raise httpx.ReadError("closed")

    found = await call(respond)
    assert (found.end, found.code) == (End.REFUSED, "ReadError")


async def test_a_client_polls_its_job_to_the_end() -> None:
    polled = iter(["queued", "in_progress", "completed"])

    def respond(got: httpx.Request, expected: Any) -> httpx.Response:
        if got.method == "POST":
            return httpx.Response(202, json={"id": "j1"})
        if got.url.path.endswith("/result"):
            return httpx.Response(200, content=expected.answer.body)
        return httpx.Response(200, json={"state": next(polled), "text": ""})

    found = await call(respond, Mode.POLLED, stream=False)
    assert (found.end, found.job_id) == (End.COMPLETE, "j1")
    assert errors_of(found, None, strict=False) == []


async def test_a_job_that_no_longer_exists_is_gone() -> None:
    found = await call(
        lambda got, _: httpx.Response(202 if got.method == "POST" else 404, json={"id": "j1"}),
        Mode.POLLED,
    )
    assert (found.end, found.code) == (End.FAILED, "gone")


@pytest.mark.parametrize(("state", "end"), [("cancelled", End.LEFT), ("completed", End.FAILED)])
async def test_a_client_cancels_its_job(state: str, end: End) -> None:
    def respond(got: httpx.Request, expected: Any) -> httpx.Response:
        job = {"id": "j1", "state": state, "text": expected.texts[0][:20]}
        return httpx.Response(202 if got.url.path == "/jobs" else 200, json=job)

    assert (await call(respond, Mode.CANCELLED, stream=False)).end is end


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

"""What the worker changes in a response, and in a stream that is made again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shared.api.endpoints import ENDPOINTS
from shared.job.responses import ResponseOptions, opening
from tests.unit.worker.bench import make_job
from worker.core.edits import ResponseEdit, engine_body
from worker.core.resume import ContinuationDiffers, SentChunks

JOB = "job_000" + "0" * 24
DELTA = b'event: response.output_text.delta\ndata: {"delta":"response.completed"}\n\n'


def event(name: str, **response: Any) -> bytes:
    data = {"response": {"id": "resp_1", "created_at": 5, **response}, "type": name}
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


def parsed(chunk: bytes) -> tuple[str, Any]:
    name, _, data = chunk.decode().partition("\ndata: ")
    return name.removeprefix("event: "), json.loads(data)


def edit(tier: str = "", **options: Any) -> ResponseEdit:
    return ResponseEdit(JOB, ResponseOptions(**options).prefix() + b'"input":"x"}', tier)


def test_vllm_names_the_response_by_its_job() -> None:
    responses = ENDPOINTS["/v1/responses"]
    body = engine_body(make_job(id=JOB, body=b'{"input":"x"}'), responses)
    assert json.loads(body) == {"request_id": "resp_" + JOB[4:], "input": "x"}
    assert engine_body(make_job(id=JOB, body=b"[]"), responses) == b"[]"


def test_an_answer_without_options_stays_as_it_is() -> None:
    plain = edit()
    for chunk in (DELTA, event("response.completed", status="completed"), b": comment\n\n"):
        assert plain.chunk(chunk) is chunk
    body = b'{"object":"response", "output":[]}'
    assert plain.whole(body) is body


def test_an_incomplete_response_ends_with_its_own_event() -> None:
    name, data = parsed(edit().chunk(event("response.completed", status="incomplete")))
    assert name == data["type"] == "response.incomplete"
    assert data["response"]["status"] == "incomplete"


def test_what_the_client_asked_for_is_shown() -> None:
    asked = edit("flex", background=True, previous_response_id="resp_0", created_at=9)
    for name in ("response.in_progress", "response.completed"):
        shown_name, data = parsed(asked.chunk(event(name, status="completed", é="ü")))
        assert shown_name == data["type"] == name
        assert data["response"]["é"] == "ü"
        assert data["response"]["background"] is True
        assert data["response"]["previous_response_id"] == "resp_0"
        assert data["response"]["service_tier"] == "flex"
        assert data["response"]["created_at"] == 9
    assert asked.chunk(DELTA) is DELTA
    whole = json.loads(asked.whole(b'{"object":"response","output":[]}'))
    assert whole["background"] is True
    for other in (b"null", b"[1]", b"text", b'{"object":"other"}'):
        assert asked.whole(other) == other


def test_what_is_in_a_response_is_passed_on_as_bytes() -> None:
    """An answer may have tens of megabytes, and is edited on the worker's event loop."""
    output = b'[{"logprobs" :  [1.50, 2E1]}]'
    response = b'{"object":"response","status":"incomplete","output":%b}' % output
    made = edit("flex").whole(response)
    assert (made.count(output), json.loads(made)["service_tier"]) == (1, "flex")
    chunk = b'event: response.completed\ndata: {"type":"response.completed","response":%b}\n\n'
    made = edit().chunk(chunk % response)
    assert (made.count(output), parsed(made)[0]) == (1, "response.incomplete")


def test_the_first_event_of_a_background_response_is_the_gateways() -> None:
    members = b'"model":"m","temperature":0.5'
    options = ResponseOptions(background=True, created_at=9, fields_bytes=len(members))
    body = options.prefix() + members + b', "input": "x"}'
    made = ResponseEdit(JOB, body, "").chunk(event("response.created", status="in_progress"))
    assert made == opening(JOB, body)
    name, data = parsed(made)
    assert name == data["type"] == "response.created"
    response = data["response"]
    assert (response["id"], response["status"]) == ("resp_" + JOB[4:], "queued")
    assert (response["model"], response["temperature"], response["tools"]) == ("m", 0.5, [])
    assert response["created_at"] == 9


def item_event(item_id: str, text: str, number: int) -> bytes:
    data = {"delta": text, "item_id": item_id, "sequence_number": number}
    return b"event: response.output_text.delta\ndata: " + json.dumps(data).encode() + b"\n\n"


def test_ids_are_those_that_the_client_has() -> None:
    sent = SentChunks(
        [event("response.created"), item_event("msg_a", "x", 1), item_event("msg_a", "y", 2)]
    )
    assert sent.unsent(event("response.created", created_at=8)) is None
    assert sent.unsent(item_event("msg_b", "x", 1)) is None
    assert sent.unsent(item_event("msg_b", "y", 2)) is None
    assert sent.unsent(item_event("msg_b", "z", 3)) == item_event("msg_a", "z", 3)
    last = event("response.completed", output=[{"id": "msg_b", "text": "xyz"}], created_at=8)
    assert sent.unsent(last) == event("response.completed", output=[{"id": "msg_a", "text": "xyz"}])
    sent.check_all_made()


@pytest.mark.parametrize("other", [item_event("msg_b", "y", 1), item_event("msg_b", "x", 2)])
def test_other_events_are_refused(other: bytes) -> None:
    sent = SentChunks([item_event("msg_a", "x", 1)])
    with pytest.raises(ContinuationDiffers):
        sent.unsent(other)

"""The body of `POST /v1/responses`: what vLLM gets of it, and what the gateway keeps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.apis.responses.response_items import (
    History,
    as_items,
    find_items,
    join_input,
    pack_item,
    sent_again,
    shown,
)
from gateway.apis.responses.response_request import Joined, ResponseRequest, response_request
from shared.job.errors import BadRequest
from shared.job.responses import ResponseOptions

MESSAGE = {"type": "message", "role": "user", "content": "two"}
OUTPUT = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "phase": None,
    "content": [{"type": "output_text", "text": "one", "annotations": [], "logprobs": None}],
}
EMPTY = {"type": "message", "role": "assistant", "content": [], "id": "msg_2"}


def for_the_engine(body: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(body)
    del fields["flotilla"]
    return fields


def behind(request: ResponseRequest, history: list[Any], max_items: int = 10) -> Joined:
    """The body behind these items."""
    parts = History(len(history), [pack_item(item) for item in history])
    referred = find_items(parts, request.references, "job_0")
    return request.behind(parts, referred, "job_1", max_items)


def test_vllm_stores_nothing_and_has_no_predecessor() -> None:
    request = response_request(
        {
            "model": "m",
            "input": "hé",
            "background": True,
            "store": True,
            "temperature": 0.5,
            "request_id": "mine",
            "stream_options": {"include_obfuscation": False},
        }
    )
    assert for_the_engine(request.body) == {
        "model": "m",
        "input": "hé",
        "temperature": 0.5,
        "store": False,
    }
    options = ResponseOptions.of_body(request.body)
    assert (options.background, options.store) == (True, True)
    assert options.created_at > 0
    assert not request.has_history


def test_a_background_response_that_is_not_stored_is_for_vllm_to_refuse() -> None:
    request = response_request({"input": "x", "background": True, "store": False})
    assert for_the_engine(request.body) == {"input": "x", "background": True, "store": False}
    assert not request.options.background


@pytest.mark.parametrize("given", ["two", [MESSAGE], [MESSAGE, EMPTY]])
def test_the_history_is_before_the_input(given: Any) -> None:
    request = response_request({"input": given, "previous_response_id": "resp_1"})
    assert request.has_history
    assert request.body == b""
    history = [*as_items("one"), *sent_again([OUTPUT])]
    joined = behind(request, history)
    assert for_the_engine(joined.body)["input"] == [*history, MESSAGE]
    options = ResponseOptions.of_body(joined.body)
    assert options.n_items == 3
    assert joined.head_bytes == options.head_bytes
    assert joined.body[joined.head_bytes :].startswith(b', "input": [')
    ((item_id, own),) = joined.own
    assert json.loads(own)["id"] == item_id
    assert json.loads(own)["content"] == [{"type": "input_text", "text": "two"}]
    again = join_input(options.input_of(joined.body), options.n_items)
    assert json.loads(b"[%b]" % b",".join(again.parts)) == [*history, MESSAGE]
    assert again.n_items == 3


def test_null_and_logprobs_are_not_sent_again() -> None:
    (again,) = sent_again([OUTPUT, EMPTY])
    assert again == {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "one", "annotations": []}],
    }


def test_a_reference_stands_for_an_item_of_the_history() -> None:
    given = [{"type": "item_reference", "id": "msg_1"}, MESSAGE]
    request = response_request({"input": given, "conversation": {"id": "conv_1"}})
    assert request.options.conversation == "conv_1"
    joined = behind(request, [OUTPUT])
    assert for_the_engine(joined.body)["input"] == [OUTPUT, OUTPUT, MESSAGE]
    assert len(joined.own) == 1  # the conversation has the other
    with pytest.raises(BadRequest, match="msg_1"):
        behind(request, [])


@pytest.mark.parametrize("item_id", [["x"], {"x": 1}, 7, None])
def test_an_item_with_an_id_that_is_no_text_breaks_no_reference(item_id: Any) -> None:
    given = [{"type": "item_reference", "id": "msg_1"}]
    request = response_request({"input": given, "conversation": "conv_1"})
    joined = behind(request, [MESSAGE | {"id": item_id}, OUTPUT])
    assert for_the_engine(joined.body)["input"][2] == OUTPUT
    with pytest.raises(BadRequest, match="must be a text"):
        response_request({"input": [{"type": "item_reference", "id": item_id}]})


def test_a_conversation_has_a_greatest_length() -> None:
    request = response_request({"input": "x", "previous_response_id": "resp_1"})
    with pytest.raises(BadRequest) as caught:
        behind(request, [MESSAGE] * 3, 3)
    assert caught.value.param == "input"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": "yes"}, "background"),
        ({"store": 1}, "store"),
        ({"previous_response_id": 7}, "previous_response_id"),
        ({"previous_response_id": "a b"}, "previous_response_id"),
        ({"previous_response_id": ""}, "previous_response_id"),
        ({"conversation": ["x"]}, "conversation"),
        ({"conversation": {"name": "x"}}, "conversation"),
        ({"conversation": "c", "previous_response_id": "r"}, "previous_response_id"),
        ({"previous_input_messages": [{}], "previous_response_id": "r"}, "previous_response_id"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input"),
        ({"input": [{"type": "item_reference", "id": ["x"]}]}, "input"),
        ({"input": [{"type": "item_reference"}]}, "input"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        response_request({"input": "x"} | fields)
    assert caught.value.param == param


def test_an_input_that_continues_something_must_be_items() -> None:
    request = response_request({"input": 7, "previous_response_id": "resp_1"})
    with pytest.raises(BadRequest):
        behind(request, [])


def test_items_are_shown_with_ids_that_stay() -> None:
    call = {"type": "function_call_output", "call_id": "c", "output": "5"}
    assert shown(MESSAGE, "job_1", 0) == shown(MESSAGE, "job_1", 0)
    ids = {shown(MESSAGE, owner, place)["id"] for owner in ("job_1", "job_2") for place in range(2)}
    assert len(ids) == 4
    assert shown(MESSAGE, "job_1", 0)["content"] == [{"type": "input_text", "text": "two"}]
    assert shown(OUTPUT, "job_1", 0) == OUTPUT
    assert shown(call, "job_1", 0)["id"].startswith("fco_")
    assert shown(OUTPUT | {"id": ["x"]}, "job_1", 0)["id"].startswith("msg_")

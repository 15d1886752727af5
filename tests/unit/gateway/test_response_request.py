"""The body of `POST /v1/responses`: what vLLM gets of it, and what the gateway keeps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.jobs.response_items import as_items, page, sent_again, shown
from gateway.jobs.response_request import response_request
from shared.api.errors import BadRequest, NotFound
from shared.protocol.response_options import ResponseOptions

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


def test_vllm_stores_nothing_and_has_no_predecessor() -> None:
    request = response_request(
        {
            "model": "m",
            "input": "hé",
            "background": True,
            "store": True,
            "temperature": 0.5,
            "request_id": "mine",
            "flotilla": {"on_disconnect": "keep"},
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


def test_a_body_without_input_is_for_vllm_to_refuse() -> None:
    assert for_the_engine(response_request({}).body) == {"store": False}
    assert for_the_engine(response_request({"input": 7}).body) == {"input": 7, "store": False}


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
    body = request.body_behind(history, 10)
    assert for_the_engine(body)["input"] == [*history, MESSAGE]
    assert ResponseOptions.of_body(body).n_before == 2


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
    body = request.body_behind([OUTPUT], 10)
    assert for_the_engine(body)["input"] == [OUTPUT, OUTPUT, MESSAGE]
    with pytest.raises(BadRequest, match="msg_1"):
        request.body_behind([], 10)


@pytest.mark.parametrize("item_id", [["x"], {"x": 1}, 7, None])
def test_an_item_with_an_id_that_is_no_text_breaks_no_reference(item_id: Any) -> None:
    given = [{"type": "item_reference", "id": "msg_1"}]
    request = response_request({"input": given, "conversation": "conv_1"})
    body = request.body_behind([MESSAGE | {"id": item_id}, OUTPUT], 10)
    assert for_the_engine(body)["input"][2] == OUTPUT
    with pytest.raises(BadRequest, match="must be a text"):
        response_request({"input": [{"type": "item_reference", "id": item_id}]})


def test_a_conversation_has_a_greatest_length() -> None:
    request = response_request({"input": "x", "previous_response_id": "resp_1"})
    with pytest.raises(BadRequest) as caught:
        request.body_behind([MESSAGE] * 3, 3)
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
        request.body_behind([], 10)


def test_items_are_shown_with_ids_that_stay() -> None:
    call = {"type": "function_call_output", "call_id": "c", "output": "5"}
    items = shown([MESSAGE, OUTPUT, call], "job_1")
    assert items == shown([MESSAGE, OUTPUT, call], "job_1")
    assert items != shown([MESSAGE, OUTPUT, call], "job_2")
    assert items[0]["content"] == [{"type": "input_text", "text": "two"}]
    assert items[1] == OUTPUT
    assert items[2]["id"].startswith("fco_")


def test_pages_of_items() -> None:
    items = shown(as_items("a") * 5, "job_1")
    ids = [item["id"] for item in items]
    first = page(items, after="", limit=2, descending=True)
    assert [item["id"] for item in first["data"]] == [ids[4], ids[3]]
    assert (first["first_id"], first["last_id"], first["has_more"]) == (ids[4], ids[3], True)
    last = page(items, after=ids[3], limit=3, descending=True)
    assert [item["id"] for item in last["data"]] == ids[2::-1]
    assert not last["has_more"]
    assert page([], after="", limit=2, descending=False)["data"] == []
    with pytest.raises(NotFound):
        page(items, after="x", limit=2, descending=False)

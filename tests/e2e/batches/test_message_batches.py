"""Anthropic's batches by its unmodified SDK: a gateway, maintenance and a simulated worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import Anthropic
from anthropic.types.messages import MessageBatch, MessageBatchIndividualResponse
from openai import OpenAI

from tests.harness.client import CHAT, batch_line, http
from tests.harness.fleet import Process
from tests.harness.waiting import wait_for

GATEWAY = {"api_keys": "team:k-team,other:k-other"}
PATH = "/v1/messages/batches"
MODEL = "simulated"


@pytest.fixture
def client(fleet: Process) -> Iterator[Anthropic]:
    with Anthropic(base_url=fleet.url, api_key="k-team", max_retries=0) as client:
        yield client


@pytest.fixture
def other(fleet: Process) -> Iterator[Anthropic]:
    with Anthropic(base_url=fleet.url, api_key="k-other", max_retries=0) as client:
        yield client


def params(text: str, **fields: Any) -> Any:
    return {
        "model": MODEL,
        "max_tokens": 3,
        "messages": [{"role": "user", "content": text}],
    } | fields


def of(custom_id: str, **fields: Any) -> Any:
    """A request of a batch."""
    return {"custom_id": custom_id, "params": params(custom_id, **fields)}


LONG = {"max_tokens": 8000, "ignore_eos": True}


def ended(client: Anthropic, batch: MessageBatch) -> MessageBatch:
    """The batch at its end."""

    def has_ended() -> MessageBatch | None:
        found = client.messages.batches.retrieve(batch.id)
        return found if found.processing_status == "ended" else None

    return wait_for(has_ended, "the batch has ended", 60)


def results(client: Anthropic, batch: MessageBatch) -> dict[str, MessageBatchIndividualResponse]:
    found = list(client.messages.batches.results(batch.id))
    by_id = {each.custom_id: each for each in found}
    assert len(by_id) == len(found)
    return by_id


def ask(fleet: Process, method: str, path: str, key: str = "k-team", **rest: Any) -> httpx.Response:
    return http.request(method, f"{fleet.url}{path}", headers={"x-api-key": key}, **rest)


def without_id(message: Any) -> Any:
    return message.model_dump() | {"id": ""}


def test_results_are_those_of_single_calls(client: Anthropic) -> None:
    batch = client.messages.batches.create(
        requests=[
            of("a"),
            of("b-2", system="Short\u2028\n."),
            of(
                "c_3",
                messages=[{"role": "user", "content": [{"type": "text", "text": "\u00e9{["}]}],
            ),
        ]
    )
    assert batch.id.startswith("msgbatch_")
    assert batch.type == "message_batch"
    assert batch.expires_at - batch.created_at == timedelta(hours=24)
    assert batch.request_counts.processing == 3
    assert (batch.ended_at, batch.results_url, batch.archived_at) == (None, None, None)
    done = ended(client, batch)
    assert done.request_counts.to_dict() == {
        "processing": 0, "succeeded": 3, "errored": 0, "canceled": 0, "expired": 0,
    }  # fmt: skip
    assert done.created_at <= done.ended_at
    assert done.cancel_initiated_at is None
    found = results(client, done)
    single = {
        "a": client.messages.create(**params("a")),
        "b-2": client.messages.create(**params("b-2", system="Short\u2028\n.")),
        "c_3": client.messages.create(
            **params(
                "", messages=[{"role": "user", "content": [{"type": "text", "text": "\u00e9{["}]}]
            )
        ),
    }
    assert found.keys() == single.keys()
    for custom_id, message in single.items():
        assert found[custom_id].result.type == "succeeded"
        assert without_id(found[custom_id].result.message) == without_id(message)


def test_errors_are_those_of_single_calls(fleet: Process, client: Anthropic) -> None:
    wrong = {
        "model": {"model": "no-such"},
        "tokens": {"max_tokens": -1},
        "none": {"messages": []},
        "type": {"model": 7},
        "deep": {"messages": [{"role": "user", "content": [json.loads("[" * 90 + "]" * 90)]}]},
    }
    sent = [of(name, **fields) for name, fields in wrong.items()]
    batch = client.messages.batches.create(requests=[*sent, of("fine"), of("stream", stream=True)])
    done = ended(client, batch)
    assert (done.request_counts.succeeded, done.request_counts.errored) == (1, 6)
    lines = ask(fleet, "GET", done.results_url or "").text.splitlines()
    found = {each["custom_id"]: each["result"] for each in map(json.loads, lines)}
    assert found["fine"]["type"] == "succeeded"
    assert found["stream"]["error"]["error"]["type"] == "invalid_request_error"
    for each in sent:
        single = ask(fleet, "POST", "/v1/messages", json=each["params"])
        result = found[each["custom_id"]]
        assert result["type"] == "errored", result
        assert result["error"].pop("request_id").startswith("job_")
        assert result["error"] == single.json()
    typed = results(client, done)["model"].result
    assert typed.type == "errored"
    assert typed.error.error.type == "not_found_error"


def test_cancel_and_delete(fleet: Process, client: Anthropic) -> None:
    batch = client.messages.batches.create(requests=[of("quick"), of("slow", **LONG)])
    with pytest.raises(anthropic.BadRequestError, match="cancel it first"):
        client.messages.batches.delete(batch.id)
    with pytest.raises(anthropic.NotFoundError):
        client.get(f"{PATH}/{batch.id}/results", cast_to=object)
    asked = client.messages.batches.cancel(batch.id)
    assert asked.processing_status in ("canceling", "ended")
    assert asked.cancel_initiated_at is not None
    done = ended(client, batch)
    counts = done.request_counts
    assert (counts.canceled >= 1, counts.canceled + counts.succeeded) == (True, 2)
    assert results(client, done)["slow"].result.type == "canceled"
    assert client.messages.batches.cancel(batch.id).processing_status == "ended"
    files = [each["id"] for each in message_files(fleet)]
    errors = next(each for each in message_files(fleet) if "errors" in each["filename"])
    assert errors["filename"] == f"{batch.id}_errors.jsonl"
    deleted = client.messages.batches.delete(batch.id)
    assert (deleted.id, deleted.type) == (batch.id, "message_batch_deleted")
    gone = set(files) - {each["id"] for each in message_files(fleet)}
    assert len(gone) == 2 + (counts.succeeded > 0)
    for call in (client.messages.batches.retrieve, client.messages.batches.delete):
        with pytest.raises(anthropic.NotFoundError):
            call(batch.id)
    assert batch.id not in [each.id for each in client.messages.batches.list(limit=1000)]


def message_files(fleet: Process) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ask(fleet, "GET", "/v1/files?purpose=message_batch").json()[
        "data"
    ]
    return found


def test_an_ended_batch_is_not_canceled(client: Anthropic) -> None:
    done = ended(client, client.messages.batches.create(requests=[of("a")]))
    with pytest.raises(anthropic.ConflictError) as refused:
        client.messages.batches.cancel(done.id)
    assert refused.value.response.headers["x-should-retry"] == "false"
    assert refused.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]


def test_pages_of_either_api_have_its_own_batches(fleet: Process, client: Anthropic) -> None:
    with OpenAI(base_url=f"{fleet.url}/v1", api_key="k-team", max_retries=0) as openai:
        file = openai.files.create(file=("in.jsonl", batch_line("a")), purpose="batch")
        of_openai = openai.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h"
        )
        made = [client.messages.batches.create(requests=[of("a")]).id for _ in range(5)][::-1]
        assert {each.id for each in openai.batches.list(limit=100)}.isdisjoint(made)
        assert all(each.purpose != "message_batch" for each in openai.files.list())
        assert ask(fleet, "GET", f"/v1/batches/{made[0]}").status_code == 404
    listed = [each.id for each in client.messages.batches.list(limit=2)]
    assert listed[:5] == made
    assert of_openai.id not in listed
    page = client.messages.batches.list(limit=2)
    assert ([each.id for each in page.data], page.has_more) == (made[:2], True)
    assert (page.first_id, page.last_id) == (made[0], made[1])
    older = client.messages.batches.list(limit=2, after_id=made[1])
    assert [each.id for each in older.data] == made[2:4]
    newer = client.messages.batches.list(limit=2, before_id=made[4])
    assert ([each.id for each in newer.data], newer.has_more) == (made[2:4], True)
    assert [each.id for each in newer.get_next_page().data] == made[:2]
    assert not client.messages.batches.list(before_id=made[0]).data
    answer = ask(fleet, "GET", f"{PATH}?before_id={made[0]}&after_id={made[1]}")
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert ask(fleet, "GET", f"{PATH}?limit=1001").status_code == 400
    assert ask(fleet, "GET", f"{PATH}?beta=true").status_code == 200


def test_others_do_not_see_it(fleet: Process, client: Anthropic, other: Anthropic) -> None:
    done = ended(client, client.messages.batches.create(requests=[of("a")]))
    assert done.id not in [each.id for each in other.messages.batches.list(limit=1000)]
    for key, batch_id in (("k-other", done.id), ("k-team", "msgbatch_none"), ("k-team", "x")):
        for method, rest in (
            ("GET", ""), ("GET", "/results"), ("POST", "/cancel"), ("DELETE", ""),
        ):  # fmt: skip
            answer = ask(fleet, method, f"{PATH}/{batch_id}{rest}", key)
            assert answer.status_code == 404, (method, rest)
            assert answer.json()["error"]["type"] == "not_found_error"
    assert ask(fleet, "GET", f"{PATH}?after_id={done.id}", "k-other").status_code == 404
    assert results(client, done)["a"].result.type == "succeeded"

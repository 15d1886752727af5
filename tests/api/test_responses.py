"""OpenAI's Responses API with the unmodified SDK: stored, in the background, continued, resumed.

Two gateways and one simulated worker, real processes. Each call may go to either gateway.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import httpx
import openai
import pytest
from openai import OpenAI

from tests.harness.client import MODEL
from tests.harness.fleet import Process, Stack
from tests.harness.waiting import wait_for

LONG = {"max_output_tokens": 4000, "extra_body": {"ignore_eos": True}}
"""Takes many seconds."""


class Fleet(NamedTuple):
    """The processes, and a client of each gateway."""

    one: OpenAI
    other: OpenAI
    gateways: list[Process]


@pytest.fixture(scope="module")
def fleet(module_stack: Stack) -> Iterator[Fleet]:
    """A fleet whose engine makes a token every 4 ms."""
    keys = {"api_keys": "a:key-of-a,b:key-of-b"}
    gateways = [module_stack.gateway(**keys) for _ in range(2)]
    module_stack.worker(sim_step_ms=4, sim_step_us_per_seq=0)
    with client_of(gateways[0]) as one, client_of(gateways[1]) as other:
        yield Fleet(one, other, gateways)


def client_of(gateway: Process, key: str = "key-of-a") -> OpenAI:
    return OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0, timeout=60)


def ended(client: OpenAI, response_id: str) -> Any:
    """The response once it has ended."""
    found: list[Any] = []

    def poll() -> bool:
        found.append(client.responses.retrieve(response_id))
        return found[-1].status not in ("queued", "in_progress")

    wait_for(poll, "the response has ended")
    return found[-1]


def messages(page: Any) -> list[str]:
    """The texts of a page of items, oldest first."""
    return [item.content[0].text for item in reversed(page.data)]


def test_a_response_is_stored(fleet: Fleet) -> None:
    made = fleet.one.responses.create(
        model=MODEL, input="Hello", instructions="Be brief.", metadata={"a": "b"}
    )
    assert made.id.startswith("resp_")
    assert made.status == "completed"
    assert made.output_text.startswith("[simulated]")
    again = fleet.other.responses.retrieve(made.id)
    assert again.to_dict() == made.to_dict()
    assert again.metadata == {"a": "b"}
    (item,) = fleet.other.responses.input_items.list(made.id).data
    assert (item.role, item.content[0].text) == ("user", "Hello")
    fleet.one.responses.delete(made.id)
    for call in (fleet.other.responses.retrieve, fleet.other.responses.delete):
        for gone in (made.id, "resp_x", "resp_" + "0" * 26):
            with pytest.raises(openai.NotFoundError):
                call(gone)


def test_a_stream_adds_up_and_can_be_read_again(fleet: Fleet) -> None:
    with fleet.one.responses.stream(model=MODEL, input="Count") as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.completed"
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == final.output_text
    assert fleet.other.responses.retrieve(final.id).output_text == text
    raw = list(fleet.one.responses.retrieve(final.id, stream=True))
    for after in (0, 1, 5, len(raw) - 2, len(raw) - 1):
        rest = list(fleet.other.responses.retrieve(final.id, stream=True, starting_after=after))
        assert rest == raw[after + 1 :]


def test_an_incomplete_response_says_so(fleet: Fleet) -> None:
    made = fleet.one.responses.create(
        model=MODEL, input="Hello", max_output_tokens=3, extra_body={"ignore_eos": True}
    )
    assert made.status == "incomplete"
    assert made.incomplete_details is not None
    assert made.incomplete_details.reason == "max_output_tokens"
    stream = fleet.one.responses.create(
        model=MODEL,
        input="Hello",
        max_output_tokens=3,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    last = list(stream)[-1]
    assert (last.type, last.response.status) == ("response.incomplete", "incomplete")


def test_a_background_response_answers_at_once_and_is_polled_elsewhere(fleet: Fleet) -> None:
    made = fleet.one.responses.create(
        model=MODEL,
        input="Hello",
        background=True,
        max_output_tokens=400,
        extra_body={"ignore_eos": True},
    )
    assert made.status == "queued"  # before it has ended; also where a worker begins it at once
    assert made.background is True
    assert made.output == []
    final = ended(fleet.other, made.id)
    assert final.status == "incomplete"
    assert final.output_text.startswith("[simulated]")
    assert final.background is True
    assert final.created_at == made.created_at
    cancelled = fleet.one.responses.cancel(made.id)  # it has ended: nothing to cancel
    assert cancelled.to_dict() == final.to_dict()


@pytest.mark.parametrize("stream", [False, True])
def test_a_background_response_is_cancelled(fleet: Fleet, stream: bool) -> None:
    made: Any = fleet.one.responses.create(
        model=MODEL, input="Go on", background=True, stream=stream, **LONG
    )
    response_id = next(iter(made)).response.id if stream else made.id

    def started() -> bool:
        return fleet.other.responses.retrieve(response_id).status == "in_progress"

    wait_for(started, "it is in progress")
    cancelled = fleet.other.responses.cancel(response_id)
    assert cancelled.status == "cancelled"
    assert fleet.one.responses.cancel(response_id).status == "cancelled"
    assert fleet.one.responses.retrieve(response_id).status == "cancelled"


def test_a_synchronous_response_is_not_cancelled(fleet: Fleet) -> None:
    made = fleet.one.responses.create(model=MODEL, input="Hello")
    with pytest.raises(openai.BadRequestError, match="synchronous"):
        fleet.one.responses.cancel(made.id)


def test_a_background_stream_goes_on_without_its_client(fleet: Fleet) -> None:
    stream = fleet.one.responses.create(
        model=MODEL,
        input="Go on",
        background=True,
        stream=True,
        max_output_tokens=600,
        extra_body={"ignore_eos": True},
    )
    seen = []
    for event in stream:
        seen.append(event)
        if event.sequence_number == 20:
            break
    stream.close()
    assert (seen[0].type, seen[0].response.status) == ("response.created", "queued")
    response_id = seen[0].response.id
    rest = list(fleet.other.responses.retrieve(response_id, stream=True, starting_after=20))
    assert [event.sequence_number for event in [*seen, *rest]] == list(range(len(seen + rest)))
    deltas = [e.delta for e in [*seen, *rest] if e.type == "response.output_text.delta"]
    assert rest[-1].type == "response.incomplete"
    assert rest[-1].response.output_text == "".join(deltas)
    assert len({e.item_id for e in [*seen, *rest] if hasattr(e, "item_id")}) == 1
    with fleet.one.responses.stream(response_id=response_id, starting_after=600) as helper:
        assert next(event.sequence_number for event in helper) == 601


def test_events_that_are_not_made_yet_are_waited_for(fleet: Fleet) -> None:
    stream = fleet.one.responses.create(
        model=MODEL,
        input="Go on",
        background=True,
        stream=True,
        max_output_tokens=300,
        extra_body={"ignore_eos": True},
    )
    response_id = next(iter(stream)).response.id
    late = list(fleet.other.responses.retrieve(response_id, stream=True, starting_after=200))
    assert late[0].sequence_number == 201
    stream.close()
    beyond = list(fleet.other.responses.retrieve(response_id, stream=True, starting_after=9999))
    assert beyond == []


def test_only_a_streamed_response_has_events(fleet: Fleet) -> None:
    made = fleet.one.responses.create(model=MODEL, input="Hello")
    with pytest.raises(openai.BadRequestError, match="stream: true"):
        fleet.one.responses.retrieve(made.id, stream=True)


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_continues_another(fleet: Fleet, stream: bool) -> None:
    first = fleet.one.responses.create(model=MODEL, input="One")
    second: Any = fleet.other.responses.create(
        model=MODEL, input="Two", previous_response_id=first.id, stream=stream
    )
    if stream:
        second = list(second)[-1].response
    assert second.previous_response_id == first.id
    fleet.one.responses.delete(first.id)  # the second has what it needs
    third = fleet.one.responses.create(model=MODEL, input="Three", previous_response_id=second.id)
    items = fleet.other.responses.input_items.list(third.id, limit=100)
    expected = ["One", first.output_text, "Two", second.output_text, "Three"]
    assert messages(items) == expected
    by_hand: list[Any] = [
        {"role": "user" if n % 2 == 0 else "assistant", "content": text}
        for n, text in enumerate(expected)
    ]
    plain = fleet.one.responses.create(model=MODEL, input=by_hand)
    assert plain.output_text == third.output_text


def test_pages_of_input_items(fleet: Fleet) -> None:
    given: list[Any] = [{"role": "user", "content": str(n)} for n in range(7)]
    made = fleet.one.responses.create(model=MODEL, input=given)
    listed = fleet.one.responses.input_items.list(made.id, limit=3, order="asc")
    assert [item.content[0].text for item in listed] == [str(n) for n in range(7)]
    assert len({item.id for item in listed}) == 7


def test_a_conversation_grows_with_its_responses(fleet: Fleet) -> None:
    conversation = fleet.one.conversations.create(
        items=[{"type": "message", "role": "user", "content": "Zero"}], metadata={"topic": "x"}
    )
    first = fleet.one.responses.create(
        model=MODEL, input="One", conversation=conversation.id, max_output_tokens=8
    )
    assert first.conversation is not None
    assert first.conversation.id == conversation.id
    second: Any = fleet.other.responses.create(
        model=MODEL, input="Two", conversation={"id": conversation.id}, stream=True
    )
    final = list(second)[-1].response
    items = list(fleet.one.conversations.items.list(conversation.id, order="asc"))
    texts = [item.content[0].text for item in items]
    assert texts == ["Zero", "One", first.output_text, "Two", final.output_text]
    assert items[2].id == first.output[0].id
    used = fleet.one.responses.input_items.list(final.id)
    assert messages(used) == texts[:4]
    shown = fleet.other.conversations.items.retrieve(items[1].id, conversation_id=conversation.id)
    assert shown.to_dict() == items[1].to_dict()
    fleet.other.conversations.items.delete(items[1].id, conversation_id=conversation.id)
    added = fleet.one.conversations.items.create(
        conversation.id, items=[{"type": "message", "role": "user", "content": "Three"}]
    )
    left = list(fleet.one.conversations.items.list(conversation.id, order="asc"))
    assert [item.id for item in left] == [item.id for item in [*items[:1], *items[2:], *added.data]]
    changed = fleet.one.conversations.update(conversation.id, metadata={"topic": "y"})
    assert fleet.other.conversations.retrieve(conversation.id).to_dict() == changed.to_dict()
    assert changed.metadata == {"topic": "y"}
    path = f"/conversations/{conversation.id}"
    same = fleet.one.post(path, cast_to=httpx.Response, body={})
    assert same.json()["metadata"] == {"topic": "y"}
    assert fleet.one.conversations.delete(conversation.id).deleted
    with pytest.raises(openai.NotFoundError):
        fleet.other.conversations.retrieve(conversation.id)
    with pytest.raises(openai.NotFoundError):
        fleet.one.responses.create(model=MODEL, input="x", conversation=conversation.id)


def test_a_conversation_tells_of_an_answer_that_is_too_large_for_it(fleet: Fleet) -> None:
    conversation = fleet.one.conversations.create()
    create = partial(fleet.one.responses.create, model=MODEL, conversation=conversation.id)
    large = create(input="One", metadata={"note": "x" * (5 << 20)})  # the answer repeats it
    message: Any = {"type": "message", "role": "user", "content": "Two"}
    for go_on in (
        partial(create, input="Two"),
        partial(fleet.other.conversations.items.create, conversation.id, items=[message]),
    ):
        with pytest.raises(openai.APIStatusError) as refused:
            go_on()
        assert refused.value.status_code == 413
        assert large.id in refused.value.message
    fleet.other.responses.delete(large.id)
    assert messages(fleet.one.responses.input_items.list(create(input="Two").id)) == ["Two"]


def test_pages_go_on_behind_items_that_were_deleted(fleet: Fleet) -> None:
    given: list[Any] = [
        {"type": "message", "role": "user", "content": str(number)} for number in range(5)
    ]
    conversation = fleet.one.conversations.create(items=given)
    seen = []
    for item in fleet.one.conversations.items.list(conversation.id, limit=2):
        seen.append(item.content[0].text)
        fleet.other.conversations.items.delete(item.id, conversation_id=conversation.id)
    assert seen == ["4", "3", "2", "1", "0"]


def test_what_is_kept_in_a_conversation_needs_permission_like_a_request(fleet: Fleet) -> None:
    url = {"type": "input_image", "detail": "auto", "image_url": "http://169.254.169.254/latest"}
    picture = {"type": "message", "role": "user", "content": [url]}
    conversation = fleet.one.conversations.create()
    for create in (
        fleet.one.conversations.create,
        partial(fleet.one.conversations.items.create, conversation.id),
    ):
        with pytest.raises(openai.BadRequestError, match="media_urls"):
            create(items=[picture])


def test_a_conversation_has_one_response_at_a_time(fleet: Fleet) -> None:
    conversation = fleet.one.conversations.create()
    running = fleet.one.responses.create(
        model=MODEL, input="Go on", conversation=conversation.id, background=True, **LONG
    )
    with pytest.raises(openai.BadRequestError) as locked:
        fleet.other.responses.create(model=MODEL, input="x", conversation=conversation.id)
    assert locked.value.code == "conversation_locked"
    fleet.other.responses.cancel(running.id)
    made = fleet.other.responses.create(model=MODEL, input="x", conversation=conversation.id)
    assert messages(fleet.one.responses.input_items.list(made.id)) == ["x"]


def test_what_is_refused(fleet: Fleet) -> None:
    create = fleet.one.responses.create
    with pytest.raises(openai.BadRequestError) as missing:
        create(model=MODEL, input="x", previous_response_id="resp_" + "0" * 27)
    assert missing.value.code == "previous_response_not_found"
    assert missing.value.param == "previous_response_id"
    unstored = create(model=MODEL, input="x", store=False)
    with pytest.raises(openai.NotFoundError):
        fleet.one.responses.retrieve(unstored.id)
    with pytest.raises(openai.BadRequestError):
        create(model=MODEL, input="y", previous_response_id=unstored.id)
    running = create(model=MODEL, input="x", background=True, **LONG)
    with pytest.raises(openai.BadRequestError, match="not complete"):
        create(model=MODEL, input="y", previous_response_id=running.id)
    fleet.one.responses.cancel(running.id)
    with pytest.raises(openai.BadRequestError, match="cancelled"):
        create(model=MODEL, input="y", previous_response_id=running.id)
    chat = fleet.one.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "x"}]
    )
    with pytest.raises(openai.NotFoundError):
        fleet.one.responses.retrieve("resp_" + chat.id.partition("job_")[2])
    with pytest.raises(openai.BadRequestError):
        create(model=MODEL, input="x", max_output_tokens=10**9)


def test_a_failed_background_response_says_why(fleet: Fleet) -> None:
    made = fleet.one.responses.create(
        model=MODEL, input="x", background=True, max_output_tokens=10**9
    )
    final = ended(fleet.other, made.id)
    assert final.status == "failed"
    assert final.error is not None
    assert final.error.code == "invalid_prompt"
    assert "max_tokens" in final.error.message


def test_another_tenants_response_is_not_continued(fleet: Fleet) -> None:
    made = fleet.one.responses.create(model=MODEL, input="x")
    with (
        client_of(fleet.gateways[0], "key-of-b") as stranger,
        pytest.raises(openai.BadRequestError) as refused,
    ):
        stranger.responses.create(model=MODEL, input="y", previous_response_id=made.id)
    assert refused.value.code == "previous_response_not_found"


def test_an_idempotency_key_makes_one_background_response(fleet: Fleet) -> None:
    headers = {"Idempotency-Key": "one-response"}
    made = [
        client.responses.create(
            model=MODEL, input="x", background=True, extra_headers=headers, **LONG
        )
        for client in (fleet.one, fleet.other)
    ]
    assert made[0].id == made[1].id
    fleet.one.responses.cancel(made[0].id)


def test_an_idempotency_key_makes_one_response_of_a_conversation(fleet: Fleet) -> None:
    """Finding 7: the second call was 400 conversation_locked while the first one ran."""
    conversation = fleet.one.conversations.create()
    headers = {"Idempotency-Key": "one-turn"}
    body: Any = {"model": MODEL, "input": "x", "conversation": conversation.id}
    made = [
        client.responses.create(**body, background=True, extra_headers=headers, **LONG)
        for client in (fleet.one, fleet.other, fleet.one)
    ]
    assert len({response.id for response in made}) == 1
    with pytest.raises(openai.UnprocessableEntityError):
        fleet.one.responses.create(**body, extra_headers=headers)
    fleet.one.responses.cancel(made[0].id)
    streams = [
        fleet.one.responses.create(**body, stream=True, extra_headers={"Idempotency-Key": "again"})
        for _ in range(2)
    ]
    finals = [list(stream)[-1].response for stream in streams]
    assert finals[0].to_dict() == finals[1].to_dict()
    items = list(fleet.other.conversations.items.list(conversation.id, order="asc"))
    assert [item.content[0].text for item in items] == ["x", finals[0].output_text]


def test_a_conversation_keeps_the_items_of_a_deleted_response(fleet: Fleet) -> None:
    conversation = fleet.one.conversations.create()
    made = fleet.one.responses.create(model=MODEL, input="x", conversation=conversation.id)
    fleet.other.responses.delete(made.id)
    items = list(fleet.other.conversations.items.list(conversation.id, order="asc"))
    assert [item.content[0].text for item in items] == ["x", made.output_text]


def test_a_job_of_a_response_is_a_response(fleet: Fleet) -> None:
    headers = {"authorization": "Bearer key-of-a"}
    with httpx.Client(base_url=fleet.gateways[0].url, headers=headers) as api:
        first = fleet.one.responses.create(model=MODEL, input="One")
        body = {"model": MODEL, "input": "Two", "previous_response_id": first.id}
        job = api.post("/jobs", json={"endpoint": "/v1/responses", "body": body}).json()
        response_id = "resp_" + job["id"].removeprefix("job_")
        final = ended(fleet.other, response_id)
        assert final.status == "completed"
        assert messages(fleet.one.responses.input_items.list(response_id))[0] == "One"
        again = api.post(f"/jobs/{job['id']}/retry")
        assert again.status_code == 409


def test_stored_responses_outlive_the_jobs_of_other_calls(fleet: Fleet) -> None:
    headers = {"authorization": "Bearer key-of-a"}
    with httpx.Client(base_url=fleet.gateways[0].url, headers=headers) as api:

        def kept_s(response_id: str) -> float:
            job = api.get("/jobs/job_" + response_id.removeprefix("resp_")).json()
            return float(job["expires_at"] - job["finished_at"])

        stored = fleet.one.responses.create(model=MODEL, input="x")
        unstored = fleet.one.responses.create(model=MODEL, input="x", store=False)
        conversation = fleet.one.conversations.create()
        in_it = fleet.one.responses.create(model=MODEL, input="x", conversation=conversation.id)
        assert kept_s(stored.id) == 48 * 3600
        assert kept_s(unstored.id) == 15 * 60
        assert kept_s(in_it.id) == 30 * 24 * 3600

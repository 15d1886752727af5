"""OpenAI's SDK for Python, unmodified."""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Literal

import openai
from checks import AUDIO, EMBED, KEY, MODEL, QUESTION, V1, check, main, raises, wav
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

client = OpenAI(base_url=V1, api_key=KEY, timeout=120, max_retries=0)
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
STORY = "Tell me a story about a queue."
LONG: Any = {"extra_body": {"ignore_eos": True, "min_tokens": 400}}


class Boat(BaseModel):
    """What structured answers are parsed into."""

    colour: Literal["red", "blue"]
    sails: bool


@check("models")
def models() -> None:
    assert MODEL in {model.id for model in client.models.list()}
    assert client.models.retrieve(MODEL).id == MODEL


@check("chat")
def chat() -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=20)
    assert answer.choices[0].message.content
    assert answer.usage
    assert answer.usage.total_tokens > answer.usage.completion_tokens > 0


@check("chat, streamed, with usage")
def chat_stream() -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=20,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert chunks[-1].usage


@check("chat.completions.stream()")
def stream_helper() -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, max_tokens=400, temperature=0
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        assert stream.get_final_completion().choices[0].message.content == text


@check("chat.completions.parse()")
def parse() -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Boat, max_tokens=300
    )
    assert isinstance(answer.choices[0].message.parsed, Boat)


@check("chat, tool call")
def tool_call() -> None:
    tool: Any = openai.pydantic_function_tool(Boat, name="paint")
    answer = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        tools=[tool],
        tool_choice={"type": "function", "function": {"name": "paint"}},
        max_tokens=300,
    )
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    Boat.model_validate_json(call.function.arguments)


@check("chat, asynchronous, 20 at once")
async def asynchronous() -> None:
    async with AsyncOpenAI(base_url=V1, api_key=KEY, timeout=120, max_retries=0) as many:

        async def one() -> str:
            stream = await many.chat.completions.create(
                model=MODEL, messages=MESSAGES, max_tokens=20, stream=True
            )
            return "".join([c.choices[0].delta.content or "" async for c in stream])

        assert all(await asyncio.gather(*(one() for _ in range(20))))


@check("completions")
def completions() -> None:
    answer = client.completions.create(model=MODEL, prompt=["Flotilla", "A queue"], max_tokens=5)
    assert [choice.index for choice in answer.choices] == [0, 1]
    chunks = client.completions.create(model=MODEL, prompt="Flotilla", max_tokens=5, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks)


@check("embeddings", needs="embed")
def embeddings() -> None:
    # The SDK asks for base64 unless a format is given.
    answer = client.embeddings.create(model=EMBED, input=["one", "two"])
    floats = client.embeddings.create(model=EMBED, input=["one", "two"], encoding_format="float")
    for each, other in zip(answer.data, floats.data, strict=True):
        assert len(each.embedding) == len(other.embedding) > 1
        differences = [abs(a - b) for a, b in zip(each.embedding, other.embedding, strict=True)]
        assert max(differences) < 0.02


@check("errors")
def errors() -> None:
    wrong_model = raises(
        openai.NotFoundError,
        lambda: client.chat.completions.create(model="no-such-model", messages=MESSAGES),
    )
    assert wrong_model.code == "model_not_found"
    raises(
        openai.BadRequestError,
        lambda: client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=-1),
    )
    no_route = raises(openai.NotFoundError, lambda: client.fine_tuning.jobs.list())
    assert no_route.code == "unknown_route"


@check("responses")
def responses() -> None:
    answer = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=20)
    assert answer.output_text
    again = client.responses.retrieve(answer.id)
    assert again.output_text == answer.output_text
    items = client.responses.input_items.list(answer.id)
    assert "Flotilla" in str(items.data[0])
    client.responses.delete(answer.id)
    raises(openai.NotFoundError, lambda: client.responses.retrieve(answer.id))


@check("responses, incomplete")
def responses_incomplete() -> None:
    answer = client.responses.create(
        model=MODEL, input=STORY, max_output_tokens=16, extra_body={"ignore_eos": True}
    )
    assert answer.status == "incomplete"
    assert answer.incomplete_details
    assert answer.incomplete_details.reason == "max_output_tokens"


@check("responses, streamed")
def responses_stream() -> None:
    stream = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=20, stream=True)
    events = list(stream)
    assert events[0].type == "response.created"
    assert events[-1].type in {"response.completed", "response.incomplete"}
    assert [event.sequence_number for event in events] == list(range(len(events)))


@check("responses.stream()")
def responses_stream_helper() -> None:
    with client.responses.stream(model=MODEL, input=QUESTION, max_output_tokens=200) as stream:
        text = "".join(
            event.delta for event in stream if event.type == "response.output_text.delta"
        )
        assert stream.get_final_response().output_text == text


@check("responses.parse()")
def responses_parse() -> None:
    answer = client.responses.parse(
        model=MODEL, input=QUESTION, text_format=Boat, max_output_tokens=100
    )
    assert isinstance(answer.output_parsed, Boat)


@check("responses, previous_response_id")
def responses_previous() -> None:
    first = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=20)
    second = client.responses.create(
        model=MODEL, input="And then?", previous_response_id=first.id, max_output_tokens=20
    )
    assert second.previous_response_id == first.id
    assert first.usage
    assert second.usage
    assert second.usage.input_tokens > first.usage.input_tokens


@check("responses, conversation")
def responses_conversation() -> None:
    conversation = client.conversations.create()
    for question in (QUESTION, "And then?"):
        client.responses.create(
            model=MODEL, input=question, conversation=conversation.id, max_output_tokens=20
        )
    assert len(client.conversations.items.list(conversation.id).data) == 4
    client.conversations.delete(conversation.id)


@check("responses, background")
async def responses_background() -> None:
    answer = client.responses.create(
        model=MODEL, input=QUESTION, background=True, max_output_tokens=20
    )
    assert answer.status in {"queued", "in_progress", "completed"}
    async with asyncio.timeout(60):
        while answer.status in {"queued", "in_progress"}:
            await asyncio.sleep(0.05)
            answer = client.responses.retrieve(answer.id)
    assert answer.output_text


@check("responses, background, cancelled")
def responses_cancel() -> None:
    answer = client.responses.create(
        model=MODEL, input=STORY, background=True, max_output_tokens=2000, **LONG
    )
    assert client.responses.cancel(answer.id).status == "cancelled"
    assert client.responses.retrieve(answer.id).status == "cancelled"


@check("responses, background, stream resumed")
def responses_resume() -> None:
    stream = client.responses.create(
        model=MODEL, input=STORY, background=True, stream=True, max_output_tokens=100
    )
    response_id, received = "", []
    for event in stream:
        received.append(event)
        if event.type == "response.created":
            response_id = event.response.id
        if len(received) == 8:
            break
    stream.close()
    rest = client.responses.retrieve(
        response_id, stream=True, starting_after=received[-1].sequence_number
    )
    events = [*received, *rest]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    last: Any = events[-1]
    assert last.response.output_text == text


@check("audio.transcriptions", needs="audio")
def audio() -> None:
    file = ("sound.wav", wav())
    answer = client.audio.transcriptions.create(model=AUDIO, file=file)
    assert isinstance(answer.text, str)
    text = client.audio.transcriptions.create(model=AUDIO, file=file, response_format="text")
    assert isinstance(text, str)
    events = client.audio.transcriptions.create(model=AUDIO, file=file, stream=True)
    assert list(events)


@check("audio.translations", needs="audio")
def translation() -> None:
    answer = client.audio.translations.create(model=AUDIO, file=("sound.wav", wav()))
    assert isinstance(answer.text, str)


def _line(custom_id: str) -> str:
    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 3}
    line = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(line)


@check("files")
def files() -> None:
    file = client.files.create(file=("in.jsonl", b"{}\n"), purpose="batch")
    assert client.files.retrieve(file.id).bytes == 3
    assert file.id in {each.id for each in client.files.list()}
    assert client.files.content(file.id).read() == b"{}\n"
    assert client.files.delete(file.id).deleted
    raises(openai.NotFoundError, lambda: client.files.retrieve(file.id))


@check("batches")
def batches() -> None:
    data = "\n".join(_line(f"line-{n}") for n in range(5)).encode()
    file = client.files.create(file=("in.jsonl", data), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    until = time.monotonic() + 60
    while batch.completed_at is None and time.monotonic() < until:
        time.sleep(0.1)
        batch = client.batches.retrieve(batch.id)
    assert batch.request_counts
    assert batch.request_counts.completed == 5
    assert batch.output_file_id
    answers = client.files.content(batch.output_file_id).text.splitlines()
    assert {json.loads(each)["custom_id"] for each in answers} == {f"line-{n}" for n in range(5)}
    assert batch.id in {each.id for each in client.batches.list(limit=1)}
    raises(openai.ConflictError, lambda: client.batches.cancel(batch.id))


@contextlib.contextmanager
def _receiver() -> Iterator[tuple[str, queue.Queue[tuple[bytes, Any]]]]:
    """Its URL, and the bodies and headers that it gets."""
    calls: queue.Queue[tuple[bytes, Any]] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            calls.put((self.rfile.read(int(self.headers["content-length"])), self.headers))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", calls
    server.shutdown()
    thread.join()
    server.server_close()


@check("webhooks")
def webhooks() -> None:
    assert "response.completed" in client.webhooks.event_types.list().data
    with _receiver() as (url, calls):
        made = client.webhooks.create(name="a", url=url, event_types=["batch.failed"])
        assert made.signing_secret.startswith("whsec_")
        assert made.id in {each.id for each in client.webhooks.list(limit=1)}
        changed = client.webhooks.update(made.id, event_types=["response.completed"])
        assert changed.event_types == ["response.completed"]
        assert client.webhooks.retrieve(made.id).name == "a"
        secret = client.webhooks.rotate_secret(made.id).signing_secret
        assert client.webhooks.test(made.id, event_type="batch.expired").success
        answer = client.responses.create(
            model=MODEL, input=QUESTION, background=True, max_output_tokens=400
        )
        events = [
            client.webhooks.unwrap(body, headers, secret=secret)
            for body, headers in (calls.get(timeout=60) for _ in range(2))
        ]
        assert [each.type for each in events] == ["batch.expired", "response.completed"]
        assert events[1].data.id == answer.id
        body, headers = b"{}", {"webhook-id": "a", "webhook-timestamp": str(int(time.time()))}
        raises(
            openai.InvalidWebhookSignatureError,
            lambda: client.webhooks.unwrap(
                body, headers | {"webhook-signature": "v1,x"}, secret=secret
            ),
        )
        assert client.webhooks.delete(made.id).deleted
    raises(openai.NotFoundError, lambda: client.webhooks.retrieve(made.id))


main()

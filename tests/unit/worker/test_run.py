"""The run of one job: answered, refused, aborted, or kept for its release."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from shared.job.log import Transcript, read_journal
from shared.job.states import JobState
from tests.harness.settings import Settings
from tests.unit.worker.bench import Bench
from worker.core import run as module
from worker.core.run import Exchange, Outcome
from worker.engines.interface import JOURNAL, TENANT, Capacity, Load
from worker.engines.simulated.engine import SimulatedEngine

Start = Callable[..., Any]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts a bench with a simulated engine of these settings, or with the given engine."""
    benches: list[Bench] = []

    async def one(engine: Any = None, **settings: Any) -> Bench:
        if engine is None:
            fast = {"sim_step_ms": 1, "sim_step_us_per_seq": 0, "sim_prefill_us_per_token": 0}
            engine = SimulatedEngine(Settings(**(fast | settings)))
            await engine.start()
        benches.append(Bench(engine))
        return benches[-1]

    yield one
    for bench in benches:
        bench.engine.close()
        await bench.close()


class Application:
    """An engine whose answer the test writes."""

    kind = "fake"
    capacity = Capacity(1, 1)
    dead = False

    def __init__(self, answer: Callable[[Receive, Send], Any]) -> None:
        self.answer = answer

    def load(self) -> Load:
        return Load(0, 0.0)

    def close(self) -> None:
        pass

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.answer(receive, send)


async def open_stream(send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def write(send: Send, data: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def test_the_journal_holds_every_token_that_was_counted(start: Start) -> None:
    bench = await start()
    await bench.run(max_tokens=8).execute()
    transcript = Transcript.empty()
    for entry in bench.queue.log:
        assert entry.items == ()
        transcript.add(read_journal(entry.journal, entry.items))
    answer = bench.queue.answer
    assert transcript.completion_tokens == answer.completion_tokens
    assert transcript.prompt_tokens == answer.prompt_tokens > 0
    body = json.loads(answer.body)
    assert transcript.usage().items() <= body["usage"].items()
    assert body["choices"][0]["message"]["content"] == transcript.choices()[0]["text"]


async def respond(send: Send, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [*headers]})
    await write(send, body, more=False)


async def test_an_answer_of_bytes_comes_with_its_header(start: Start) -> None:
    async def answer(receive: Receive, send: Send) -> None:
        kind = (b"content-type", b"application/octet-stream")
        await respond(send, b"\x00\xff", kind, (b"metadata", b"{}"), (b"server", b"x"))

    bench = await start(Application(answer))
    await bench.run(endpoint="/v1/embeddings").execute()
    result = bench.queue.answer
    assert (result.body, result.content_type) == (b"\x00\xff", "application/octet-stream")
    assert result.headers == (("metadata", "{}"),)


async def test_a_stream_that_the_endpoint_does_not_have_is_a_whole_answer(start: Start) -> None:
    async def answer(receive: Receive, send: Send) -> None:
        await respond(send, b'{"object":"list"}', (b"content-type", b"application/json"))

    bench = await start(Application(answer))
    await bench.run(endpoint="/invocations", stream=True).execute()
    assert bench.queue.answer.body == b'{"object":"list"}'
    assert bench.queue.answer.state is JobState.COMPLETED


async def test_an_answer_that_is_too_large_is_refused(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(receive: Receive, send: Send) -> None:
        await respond(send, b"x" * 101, (b"content-type", b"text/plain"))

    monkeypatch.setattr(module, "MAX_RESULT_BYTES", 100)
    bench = await start(Application(answer))
    run = bench.run(endpoint="/v1/embeddings")
    await run.execute()
    result = bench.queue.answer
    assert (run.ending, result.status, result.error_code) == ("failed", 400, "rejected")
    assert json.loads(result.body)["error"]["code"] == "answer_too_large"


@pytest.mark.parametrize(("named", "tier"), [("/v1/embeddings", None), ("/v1/completions", "flex")])
async def test_only_endpoints_with_tiers_name_the_tier(start: Start, named: str, tier: str) -> None:
    async def answer(receive: Receive, send: Send) -> None:
        await respond(send, b'{"object":"list"}', (b"content-type", b"application/json"))

    bench = await start(Application(answer))
    await bench.run(endpoint=named, service_tier="flex").execute()
    assert json.loads(bench.queue.answer.body).get("service_tier") == tier


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("endpoint", ["/v1/chat/completions", "/v1/messages"])
async def test_a_dying_engine_ends_no_job_and_sends_no_error(
    start: Start, stream: bool, endpoint: str
) -> None:
    bench = await start(sim_faults="die_on_prompt=hello,kill_after_tokens=3")
    fields = {"model": "simulated", "max_tokens": 100, "ignore_eos": True}
    run = bench.run(endpoint=endpoint, stream=stream, **fields)
    assert await run.execute() is Outcome.RELEASE
    assert bench.engine.dead
    assert bench.queue.ended == []
    assert b'"error"' not in bench.queue.sent
    assert b"[DONE]" not in bench.queue.sent


async def test_a_job_for_a_dead_engine_is_to_be_released(start: Start) -> None:
    bench = await start()
    bench.engine.close()
    assert await bench.run(stream=True).execute() is Outcome.RELEASE
    assert bench.queue.entries == []


async def test_an_error_in_the_stream_of_a_living_engine_is_passed_on_and_fails_the_job(
    start: Start,
) -> None:
    async def answer(receive: Receive, send: Send) -> None:
        await open_stream(send)
        await write(send, b'data: {"id": 1}\n\n')
        await write(send, b'data: {"error": {"message": "boom"}}\n\n')
        await write(send, b"data: [DONE]\n\n", more=False)

    bench = await start(Application(answer))
    run = bench.run(stream=True)
    assert await run.execute() is Outcome.FINISHED
    assert bench.queue.sent.count(b"data: ") == 3
    answered = bench.queue.answer
    assert answered.error_code == "engine_error"
    assert answered.status == 200


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (b'event: error\ndata: {"type":"error","error":{"message":"m"}}\n\n', "api_error"),
        (b'data: {"error": {"message": "m", "type": "InternalServerError"}}\n\n', "api_error"),
        (
            b'data: {"error": {"message": "m", "type": "invalid_request_error"}}\n\n',
            "invalid_request_error",
        ),
    ],
)
async def test_an_error_in_the_stream_of_a_message_fails_the_job(
    start: Start, event: bytes, kind: str
) -> None:
    async def answer(receive: Receive, send: Send) -> None:
        await open_stream(send)
        await write(send, b'event: message_start\ndata: {"type": "message_start"}\n\n')
        await write(send, event, more=False)

    bench = await start(Application(answer))
    assert await bench.run(endpoint="/v1/messages", stream=True).execute() is Outcome.FINISHED
    name, data = bench.queue.sent.split(b"\n\n")[1].split(b"\n")
    assert name == b"event: error"
    error = {"type": kind, "message": "m"}
    assert json.loads(data.removeprefix(b"data: ")) == {"type": "error", "error": error}
    assert bench.queue.answer.error_code == "engine_error"


async def raise_at_once(receive: Receive, send: Send) -> None:
    raise ZeroDivisionError


async def return_without_response(receive: Receive, send: Send) -> None:
    pass


async def break_off(receive: Receive, send: Send) -> None:
    await open_stream(send)
    await write(send, b"data: 1\n\n")
    raise ZeroDivisionError


async def cancel_itself(receive: Receive, send: Send) -> None:
    await open_stream(send)
    await write(send, b"data: 1\n\n")
    inner = asyncio.get_running_loop().create_future()
    inner.cancel()
    await inner


@pytest.mark.parametrize(
    "application", [raise_at_once, return_without_response, break_off, cancel_itself]
)
async def test_an_application_that_raises_fails_the_job_with_500(
    start: Start, application: Callable[[Receive, Send], Any]
) -> None:
    bench = await start(Application(application))
    assert await bench.run(stream=True).execute() is Outcome.FINISHED
    answer = bench.queue.answer
    assert (answer.error_code, answer.status) == ("engine_error", 500)
    error = json.loads(answer.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "ZeroDivision" not in error["message"]


@pytest.mark.parametrize(("release", "outcome"), [(False, Outcome.LOST), (True, Outcome.RELEASE)])
async def test_a_request_that_ignores_the_disconnect_is_cancelled(
    start: Start, monkeypatch: pytest.MonkeyPatch, release: bool, outcome: Outcome
) -> None:
    began, stopped = asyncio.Event(), asyncio.Event()

    async def ignore_disconnect(receive: Receive, send: Send) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    monkeypatch.setattr(module, "_ABORT_S", 0.001)
    bench = await start(Application(ignore_disconnect))
    run = bench.run()
    executing = asyncio.create_task(run.execute())
    async with asyncio.timeout(30):
        await began.wait()
        run.abort("handed_over", release=release)
        assert await executing is outcome
        await stopped.wait()


async def test_the_engine_is_called_in_the_runs_own_task_and_context(
    start: Start,
) -> None:
    seen: list[Any] = []

    async def answer(receive: Receive, send: Send) -> None:
        seen.append((asyncio.current_task(), JOURNAL.get(), TENANT.get()))

    bench = await start(Application(answer))
    runs = [bench.run("one"), bench.run("other", attempt=2)]
    tasks = [asyncio.create_task(run.execute()) for run in runs]
    await asyncio.gather(*tasks)
    assert seen == [(task, run.output, "team") for task, run in zip(tasks, runs, strict=True)]


async def test_the_engine_gets_the_bytes_of_the_job(start: Start) -> None:
    seen: list[Any] = []

    class Curious(Application):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            seen.append((scope["path"], dict(scope["headers"]), await receive()))
            await super().__call__(scope, receive, send)

    bench = await start(Curious(return_without_response))
    run = bench.run(endpoint="/v1/completions", prompt="ü")
    await run.execute()
    ((path, headers, message),) = seen
    assert path == "/v1/completions"
    assert message["body"] == run.job.body
    assert headers[b"x-request-id"] == b"job"


async def test_a_worker_refuses_an_endpoint_that_it_does_not_have(start: Start) -> None:
    bench = await start(Application(raise_at_once))
    await bench.run(endpoint="/v1/from-the-future").execute()
    answer = bench.queue.answer
    assert (answer.status, answer.error_code) == (404, "rejected")
    assert b"/v1/from-the-future" in answer.body


async def test_other_tasks_run_while_a_large_stream_that_never_waits_is_sent() -> None:
    turns, chunks = 0, [b"x" * (8 << 10)] * 40

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def at_once() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    beside = asyncio.create_task(others())
    received: list[bytes] = []
    await Exchange(received.append).run(
        StreamingResponse(at_once(), media_type="text/event-stream"), "POST", "/"
    )
    beside.cancel()
    assert received == chunks
    assert turns >= len(chunks) // 4

"""Hooks around runs: what they get, what they change or refuse, and what is passed on and when."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from shared.job.errors import Refused
from shared.job.log import Entry, Transcript
from shared.job.result import JobResult
from shared.job.states import JobEvent
from shared.platform.settings import SettingsError
from tests.harness.settings import Settings
from tests.unit.worker.bench import Bench
from tests.unit.worker.test_continued_run import run, transcript, without_created
from worker.core.job_run import JobRun, Outcome
from worker.engines.simulated.engine import SimulatedEngine
from worker.plugins.hooks.answer_parts import parts_of
from worker.plugins.hooks.hook_calls import Hook, HookCalls, import_hooks
from worker.plugins.hooks.hook_types import Answer, Refusal, Request
from worker.plugins.hooks.hooks_plugin import HooksPlugin, load_hooks

HERE = "tests.unit.worker.hooks.test_hooks"
TEN = {"max_tokens": 10, "ignore_eos": True}
STREAM = TEN | {"stream": True}
JSON, EVENTS = "application/json", "text/event-stream; charset=utf-8"
Run = Callable[..., Any]


class Hooked:
    """A bench whose runs have hooks."""

    def __init__(self, engine: Any, timeout_s: float, log: list[Entry], **hooks: Any) -> None:
        named = [
            Hook(kind, f"m:{kind}", function)  # type: ignore[arg-type]
            for kind, given in hooks.items()
            for function in (given if isinstance(given, tuple) else (given,))
        ]
        self.registry = CollectorRegistry()
        calls = HookCalls(named, timeout_s, self.registry)
        self.bench = Bench(engine, log, HooksPlugin(calls))
        self.run: JobRun

    async def answer(self, **body: Any) -> JobResult:
        """Run one job to its end."""
        self.run = self.bench.run(**body)
        assert await asyncio.create_task(self.run.execute()) is Outcome.FINISHED
        return self.bench.queue.answer

    @property
    def sent(self) -> bytes:
        return self.bench.queue.sent

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """The JSON objects of the stream."""
        events = self.sent.decode().split("\n\n")
        return [json.loads(e.removeprefix("data: ")) for e in events if e.startswith("data: {")]

    @property
    def transcript(self) -> Transcript:
        return transcript(self.bench.queue.log)

    def count(self, kind: str, outcome: str) -> float:
        labels = {"kind": kind, "outcome": outcome}
        value = self.registry.get_sample_value("flotilla_hook_calls_total", labels)
        assert value is not None
        return value


@pytest.fixture
async def engine() -> AsyncIterator[SimulatedEngine]:
    engine = SimulatedEngine(
        Settings(sim_step_ms=1, sim_step_us_per_seq=0, sim_prefill_us_per_token=0)
    )
    await engine.start()
    yield engine
    engine.close()


@pytest.fixture
async def hooked(engine: SimulatedEngine) -> AsyncIterator[Run]:
    """Makes a bench with these hooks."""
    made: list[Hooked] = []

    def make(*, timeout_s: float = 30.0, log: list[Entry] | None = None, **hooks: Any) -> Hooked:
        made.append(Hooked(engine, timeout_s, log or [], **hooks))
        return made[-1]

    yield make
    for each in made:
        await each.bench.close()


def content(chunk: dict[str, Any]) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])


def no_change(_: Any) -> None:
    pass


def refuse(_: Any) -> Refusal:
    return Refusal("No.", code="content_filter", status=403)


def fail(_: Any) -> None:
    raise ZeroDivisionError("secret")


# --- large answers ---


async def test_an_answer_that_is_too_large_to_be_parsed_is_refused(hooked: Run) -> None:
    """To parse it would hold up the worker's other requests."""
    seen: list[Answer] = []
    tokens = {"ignore_eos": True, "logprobs": True, "top_logprobs": 20}
    assert (await hooked(after=seen.append).answer(**tokens, max_tokens=10)).status == 200
    assert len(seen) == 1
    result = await hooked(after=seen.append).answer(**tokens, max_tokens=150, n=8)
    error = json.loads(result.body)["error"]
    assert (result.status, error["code"]) == (400, "answer_too_large")
    assert len(seen) == 1


EVENT = b'data: {"choices":[]}\n\n'


@pytest.mark.parametrize(
    ("content_type", "answer", "too_large"),
    [
        (JSON, b'{"embedding":[0.25' + b",1.5" * 1_000_000 + b"]}", False),
        (JSON, b'{"embedding":[0.25' + b",1.5" * 5_000_000 + b"]}", True),
        (JSON, b"[" + b"{}," * 20_000 + b"{}]", False),
        (JSON, b"[" + b"{}," * 30_000 + b"{}]", True),
        (EVENTS, EVENT * 40_000, False),
        (EVENTS, EVENT * 800_000, True),
        (EVENTS, b'data: {"choices":[' + b"{}," * 30_000 + b"{}]}\n\n", True),
        ("application/octet-stream", b"{" * (17 << 20), True),
    ],
)
def test_what_is_too_large_to_be_parsed(content_type: str, answer: bytes, too_large: bool) -> None:
    if too_large:
        with pytest.raises(Refused, match="check answers of at most"):
            parts_of(content_type, answer)
    else:
        assert parts_of(content_type, answer)


# --- before ---


async def test_before_changes_the_request(hooked: Run) -> None:
    def three(request: Request) -> None:
        assert request.path == "/v1/chat/completions"
        assert request.job_id == "job"
        assert json.loads(request.raw) == request.body
        request.body["max_tokens"] = 3

    async def two(request: Request) -> Request:
        assert request.body["max_tokens"] == 3
        request.body["max_tokens"] = 2
        return request

    bench = hooked(before=(three, two))
    answer = await bench.answer(**TEN)
    assert json.loads(answer.body)["usage"]["completion_tokens"] == 2
    assert answer.completion_tokens == 2
    assert bench.count("before", "passed") == 2


@pytest.mark.parametrize("body", [TEN, STREAM])
async def test_before_refuses_a_request(hooked: Run, body: Any) -> None:
    bench = hooked(before=refuse)
    answer = await bench.answer(**body)
    assert (answer.event, answer.error_code, answer.status) == (JobEvent.FAIL, "rejected", 403)
    assert json.loads(answer.body) == {
        "error": {
            "message": "No.",
            "type": "invalid_request_error",
            "param": None,
            "code": "content_filter",
        }
    }
    assert not bench.run.output.reached_engine
    assert bench.count("before", "refused") == 1


def no_json(request: Request) -> None:
    request.body["x"] = object()


def other_stream(request: Request) -> None:
    request.body["stream"] = True


def a_text(_: Any) -> str:
    return "fine"


@pytest.mark.parametrize("hook", [fail, no_json, other_stream, a_text])
async def test_a_before_hook_that_fails_fails_the_request(hooked: Run, hook: Any) -> None:
    bench = hooked(before=hook)
    answer = await bench.answer(**TEN)
    assert (answer.error_code, answer.status) == ("engine_error", 500)
    assert json.loads(answer.body)["error"]["code"] == "hook_failed"
    assert b"secret" not in answer.body
    assert not bench.run.output.reached_engine


async def test_plain_functions_run_in_a_thread_and_async_ones_do_not(hooked: Run) -> None:
    threads: list[threading.Thread] = []

    def plain(_: Any) -> None:
        threads.append(threading.current_thread())

    async def asynchronous(_: Any) -> None:
        threads.append(threading.current_thread())

    await hooked(before=(plain, asynchronous)).answer(**TEN)
    assert [each is threading.main_thread() for each in threads] == [False, True]


async def test_a_hook_has_a_time_limit(hooked: Run) -> None:
    async def for_ever(_: Any) -> None:
        await asyncio.Event().wait()

    for kind in ("before", "after"):
        bench = hooked(timeout_s=0.01, **{kind: for_ever})
        answer = await bench.answer(**TEN)
        assert json.loads(answer.body)["error"]["code"] == "hook_failed"
        assert bench.count(kind, "failed") == 1


@pytest.mark.parametrize("kind", ["before", "after"])
async def test_an_abort_ends_a_hook(hooked: Run, engine: SimulatedEngine, kind: str) -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def for_ever(_: Any) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    bench = hooked(**{kind: for_ever})
    run = bench.bench.run(**STREAM)
    executing = asyncio.create_task(run.execute())
    async with asyncio.timeout(5):
        await began.wait()
        run.abort(release=True)
        assert await executing is Outcome.RELEASE
        await cancelled.wait()
    assert engine.load().unfinished == 0
    assert bench.bench.queue.ended == []
    assert bench.sent == b""


# --- after ---


async def test_an_answer_that_passes_is_the_engines_byte_for_byte(
    hooked: Run, engine: SimulatedEngine
) -> None:
    for body in (
        TEN,
        STREAM,
        STREAM | {"n": 2},
        STREAM | {"stream_options": {"include_usage": True}},
        STREAM | {"service_tier": "flex"},
    ):
        plain, _ = await run(engine, body | {"seed": 1})
        bench = hooked(after=no_change)
        answer = await bench.answer(seed=1, **body)
        assert without_created(bench.sent) == without_created(plain.queue.sent)
        assert without_created(answer.body) == without_created(plain.queue.answer.body)
        assert bench.transcript == transcript(plain.queue.log)


@pytest.mark.parametrize("body", [TEN, STREAM])
@pytest.mark.parametrize("hook", [refuse, fail])
async def test_an_answer_that_does_not_pass_is_an_error_and_its_text_is_nowhere(
    hooked: Run, body: Any, hook: Any
) -> None:
    bench = hooked(after=hook)
    answer = await bench.answer(**body)
    refused = ("rejected", 403, "content_filter")
    expected = refused if hook is refuse else ("engine_error", 500, "hook_failed")
    code = json.loads(answer.body)["error"]["code"]
    assert (answer.error_code, answer.status, code) == expected
    assert bench.sent == b""
    assert [choice["text"] for choice in bench.transcript.choices()] == [""]
    assert bench.transcript.completion_tokens == answer.completion_tokens == 10


async def test_a_stream_is_held_until_it_is_checked(hooked: Run) -> None:
    bench: Hooked
    seen: list[Answer] = []

    async def check(answer: Answer) -> None:
        seen.append(answer)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert bench.bench.queue.entries == []

    bench = hooked(after=check)
    answer = await bench.answer(**STREAM)
    assert answer.error_code == ""
    (checked,) = seen
    assert checked.streamed
    assert checked.parts == bench.chunks
    assert (
        checked.text == "".join(map(content, bench.chunks)) == bench.transcript.choices()[0]["text"]
    )
    assert bench.sent.endswith(b"data: [DONE]\n\n")


async def test_with_before_hooks_alone_a_stream_flows(hooked: Run) -> None:
    bench = hooked(before=no_change)
    await bench.answer(**STREAM)
    assert len(bench.bench.queue.log) > 3, "not all at the end"


async def test_after_hooks_share_state_and_get_the_request_as_the_engine_got_it(
    hooked: Run,
) -> None:
    seen: list[tuple[int, int]] = []

    def note(request: Request) -> None:
        request.body["max_tokens"] = 4
        request.state["note"] = 7

    def check(answer: Answer) -> None:
        seen.append((answer.request.state["note"], answer.request.body["max_tokens"]))

    await hooked(before=note, after=check).answer(**TEN)
    assert seen == [(7, 4)]


def spoil(answer: Answer) -> None:
    answer.parts[0]["x"] = object()


def redact(answer: Answer) -> None:
    answer.parts[0]["choices"] = []


@pytest.mark.parametrize("body", [TEN, STREAM])
@pytest.mark.parametrize("hook", [spoil, redact, lambda answer: answer])
async def test_an_answer_that_a_hook_has_changed_is_not_sent(
    hooked: Run, body: Any, hook: Any
) -> None:
    """The client would get it without the change."""
    bench = hooked(after=hook)
    answer = await bench.answer(**body)
    assert json.loads(answer.body)["error"]["code"] == "hook_failed"
    assert bench.sent == b""


async def test_hooks_do_not_get_the_engines_errors(hooked: Run) -> None:
    bench = hooked(after=fail)
    answer = await bench.answer(max_tokens=-1)
    assert (answer.status, answer.error_code) == (400, "rejected")
    assert bench.count("after", "failed") == 0


@pytest.mark.parametrize("error", [b'data: {"error": {"message": "m"}}\n\n', None])
async def test_of_a_stream_that_fails_only_the_error_is_passed_on(
    hooked: Run, engine: SimulatedEngine, monkeypatch: pytest.MonkeyPatch, error: bytes | None
) -> None:
    async def broken(self: Any, scope: Any, receive: Any, send: Any) -> None:
        calls = 0

        async def first_three(message: Any) -> None:
            nonlocal calls
            calls += 1
            if calls <= 4:
                await send(message)

        await answer_whole(self, scope, receive, first_three)
        if error is None:
            raise ZeroDivisionError
        await send({"type": "http.response.body", "body": error})

    answer_whole = SimulatedEngine.__call__
    monkeypatch.setattr(SimulatedEngine, "__call__", broken)
    bench = hooked(after=no_change)
    answer = await bench.answer(**STREAM)
    assert (answer.event, answer.error_code) == (JobEvent.FAIL, "engine_error")
    assert bench.sent == (error or b"")
    assert [choice["text"] for choice in bench.transcript.choices()] == [""]
    assert bench.count("after", "passed") == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_dying_engine_ends_no_job_and_sends_no_error(stream: bool) -> None:
    engine = SimulatedEngine(Settings(sim_step_ms=1, sim_faults="die_after_steps=3"))
    await engine.start()
    bench = Hooked(engine, 30.0, [], after=no_change)
    run = bench.bench.run(stream=stream, max_tokens=100, ignore_eos=True)
    assert await asyncio.create_task(run.execute()) is Outcome.RELEASE
    await bench.bench.close()
    assert bench.bench.queue.entries == []


async def test_a_stream_goes_on_behind_what_a_worker_without_hooks_has_sent(
    hooked: Run, engine: SimulatedEngine
) -> None:
    plain, _ = await run(engine, STREAM | {"seed": 1})
    log = plain.queue.log[:4]
    seen: list[Answer] = []
    bench = hooked(after=seen.append, log=log)
    answer = await bench.answer(seed=1, **STREAM)
    assert answer.error_code == ""
    assert without_created(bench.sent) == without_created(plain.queue.sent)
    assert seen[0].parts == bench.chunks[-len(seen[0].parts) :]
    assert answer.completion_tokens == 10


# --- settings ---


def test_hooks_are_found_by_their_names() -> None:
    hooks = import_hooks(
        [f"before={HERE}:fail", f"after={HERE}:Hooked.answer", f"before={HERE}:refuse"]
    )
    assert [(hook.kind, hook.function) for hook in hooks] == [
        ("before", fail),
        ("after", Hooked.answer),
        ("before", refuse),
    ]
    assert load_hooks([], 3.0, CollectorRegistry()) is None


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ("after=no.such.module:f", "ModuleNotFoundError"),
        (f"after={HERE}:no_such", "AttributeError"),
        (f"after={HERE}:TEN", "is not a function"),
    ],
)
def test_a_hook_that_can_not_be_imported_stops_the_start(names: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        import_hooks([names])


@pytest.mark.parametrize(
    "names", ["x=a:b", "a:b", "after=a", "after=a:b:c", "after=1:b", "after=", "after_chunk=a:b"]
)
def test_names_of_another_form_are_refused(names: str) -> None:
    with pytest.raises(ValueError, match="is not before=MODULE:FUNCTION"):
        Settings(hooks=names)


def test_a_refusal_is_the_clients_fault() -> None:
    assert Refusal("x").status == 400
    with pytest.raises(ValueError, match="400 to 499"):
        Refusal("x", status=500)

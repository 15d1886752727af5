"""Hooks around the engine: what they get, what they change, and what is passed on and when."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from shared.job.job_log import Entry, Transcript, read_journal
from shared.job.result import JobResult
from shared.job.states import JobEvent
from shared.platform.metrics import WorkerMetrics
from shared.platform.settings import Settings, SettingsError
from tests.unit.worker.bench import Bench
from tests.unit.worker.test_continued_run import (
    CLASSES,
    STREAM_OPTIONS,
    run,
    transcript,
    whole_run,
    without_created,
)
from tests.waiting import eventually
from worker.core.job_run import JobRun, Outcome
from worker.engines.simulated.engine import SimulatedEngine
from worker.hooks.checked_answer import is_too_large
from worker.hooks.hooked_app import HookedApp
from worker.hooks.interface import HOLD, Answer, Refusal, Request
from worker.hooks.loading import Hook, Hooks, load_hooks

HERE = "tests.unit.worker.test_hooks"
TEN = {"max_tokens": 10, "ignore_eos": True}
STREAM = TEN | {"stream": True}
Run = Callable[..., Any]


class Hooked:
    """A bench whose runs have hooks."""

    def __init__(self, engine: Any, timeout_s: float, log: list[Entry], **hooks: Any) -> None:
        def of(kind: Any) -> tuple[Hook, ...]:
            given = hooks.pop(kind, ())
            functions = given if isinstance(given, tuple) else (given,)
            return tuple(Hook(kind, f"m:{kind}", function) for function in functions)

        chain = Hooks(of("before"), of("after_chunk"), of("after"), timeout_s)
        assert not hooks
        self.metrics = WorkerMetrics(CollectorRegistry())
        self.bench = Bench(engine, log, HookedApp(engine, chain, self.metrics.hook_calls))
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
        value: float = self.metrics.hook_calls.labels(kind, outcome)._value.get()
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


def upper(answer: Answer) -> Answer:
    """Changes text, and leaves its own output as it is."""
    answer.change_text(str.upper)
    return answer


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


@pytest.mark.parametrize(
    ("answer", "too_large"),
    [
        (b"", False),
        (b'{"embedding":[0.25' + b",1.5" * 1_000_000 + b"]}", False),
        (b'{"embedding":[0.25' + b",1.5" * 5_000_000 + b"]}", True),
        (b"[" + b"{}," * 20_000, False),
        (b"[" + b"{}," * 30_000, True),
    ],
)
def test_what_is_too_large_to_be_parsed(answer: bytes, too_large: bool) -> None:
    assert is_too_large(answer) is too_large


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
    assert not bench.run.buffer.reached_engine
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
    assert not bench.run.buffer.reached_engine


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

    for kind in ("before", "after", "after_chunk"):
        bench = hooked(timeout_s=0.01, **{kind: for_ever})
        answer = await bench.answer(**TEN)
        assert json.loads(answer.body)["error"]["code"] == "hook_failed"
        assert bench.count(kind, "failed") == 1


@pytest.mark.parametrize("kind", ["before", "after", "after_chunk"])
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
    async with asyncio.timeout(30):
        await began.wait()
        run.abort(release=True)
        assert await executing is Outcome.RELEASE
        await cancelled.wait()
    assert engine.load().unfinished == 0
    assert bench.bench.queue.ended == []
    assert bench.sent == b""


# --- after ---


async def test_after_changes_an_answer_and_what_the_job_shows_of_it(hooked: Run) -> None:
    plain, bench = hooked(after=no_change), hooked(after=upper)
    for endpoint in ("/v1/chat/completions", "/v1/completions"):
        before = await plain.answer(endpoint=endpoint, seed=1, n=2, **TEN)
        after = await bench.answer(endpoint=endpoint, seed=1, n=2, **TEN)
        texts = [
            [choice.get("text") or choice["message"]["content"] for choice in choices]
            for choices in (json.loads(before.body)["choices"], json.loads(after.body)["choices"])
        ]
        assert texts[1] == [text.upper() for text in texts[0]] != texts[0]
        shown, tokens = bench.transcript.choices(), plain.transcript.choices()
        assert [choice["text"] for choice in shown] == texts[1]
        assert [choice["tokens"] for choice in shown] == [choice["tokens"] for choice in tokens]
        assert before.completion_tokens == after.completion_tokens == 20
        plain, bench = hooked(after=no_change), hooked(after=upper)


async def test_an_unchanged_answer_is_the_engines_byte_for_byte(
    hooked: Run, engine: SimulatedEngine
) -> None:
    for body in (
        TEN,
        STREAM,
        STREAM | {"n": 2},
        STREAM | {"stream_options": {"include_usage": True}},
    ):
        plain, _ = await run(engine, body | {"seed": 1})
        for kind in ("after", "after_chunk"):
            bench = hooked(**{kind: no_change})
            answer = await bench.answer(seed=1, **body)
            assert without_created(bench.sent) == without_created(plain.queue.sent)
            assert without_created(answer.body) == without_created(plain.queue.answer.body)
            assert bench.transcript == transcript(plain.queue.log)


@pytest.mark.parametrize("body", [TEN, STREAM])
@pytest.mark.parametrize("kind", ["after", "after_chunk"])
async def test_a_refused_answer_is_an_error_and_its_text_is_nowhere(
    hooked: Run, body: Any, kind: str
) -> None:
    bench = hooked(**{kind: refuse})
    answer = await bench.answer(**body)
    assert (answer.event, answer.error_code, answer.status) == (JobEvent.FAIL, "rejected", 403)
    assert json.loads(answer.body)["error"]["code"] == "content_filter"
    assert bench.sent == b""
    assert [choice["text"] for choice in bench.transcript.choices()] in ([""], [])
    assert bench.transcript.completion_tokens == answer.completion_tokens
    assert answer.completion_tokens == 10 or kind == "after_chunk"


async def test_a_stream_is_withheld_until_it_is_checked(hooked: Run) -> None:
    bench: Hooked
    seen: list[Answer] = []

    async def check(answer: Answer) -> None:
        seen.append(answer)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert bench.bench.queue.outputs == []

    bench = hooked(after=check)
    answer = await bench.answer(**STREAM)
    assert answer.error_code == ""
    (checked,) = seen
    assert (checked.streamed, checked.final) == (True, True)
    assert checked.parts == bench.chunks
    assert (
        checked.text == "".join(map(content, bench.chunks)) == bench.transcript.choices()[0]["text"]
    )
    assert bench.sent.endswith(b"data: [DONE]\n\n")


async def test_after_hooks_share_state_and_get_the_request_as_the_engine_got_it(
    hooked: Run,
) -> None:
    def note(request: Request) -> None:
        request.body["max_tokens"] = 4
        request.state["note"] = 7

    def check(answer: Answer) -> Answer:
        assert answer.request.state["note"] == 7
        assert answer.request.body["max_tokens"] == 4
        answer.parts[0]["note"] = answer.request.state["note"]
        return answer

    answer = await hooked(before=note, after=check).answer(**TEN)
    assert json.loads(answer.body)["note"] == 7


@pytest.mark.parametrize("body", [TEN, STREAM])
async def test_an_answer_that_a_hook_makes_no_json_of_is_not_sent(hooked: Run, body: Any) -> None:
    def spoil(answer: Answer) -> None:
        answer.parts[0]["x"] = object()

    bench = hooked(after=spoil)
    answer = await bench.answer(**body)
    assert json.loads(answer.body)["error"]["code"] == "hook_failed"
    assert bench.sent == b""


async def test_hooks_do_not_get_the_engines_errors(hooked: Run) -> None:
    bench = hooked(after=fail, after_chunk=fail)
    answer = await bench.answer(max_tokens=-1)
    assert (answer.status, answer.error_code) == (400, "rejected")
    assert bench.count("after", "failed") == 0


# --- after_chunk ---


async def test_chunks_are_passed_on_one_by_one_and_changed(hooked: Run) -> None:
    finals: list[bool] = []

    def hook(answer: Answer) -> None:
        finals.append(answer.final)
        upper(answer)

    plain, bench = hooked(after_chunk=no_change), hooked(after_chunk=hook)
    await plain.answer(seed=1, **STREAM)
    await bench.answer(seed=1, **STREAM)
    texts = [content(chunk) for chunk in plain.chunks]
    assert [content(chunk) for chunk in bench.chunks] == [text.upper() for text in texts] != texts
    assert len(bench.bench.queue.log) > 3, "not all at the end"
    assert finals[-1] is True
    assert finals.count(True) == 1
    assert bench.transcript.choices()[0]["text"] == "".join(texts).upper()
    assert bench.transcript.completion_tokens == 10
    assert bench.sent.endswith(b"data: [DONE]\n\n")


async def test_held_parts_come_again_with_the_next_ones(hooked: Run) -> None:
    got: list[tuple[int, bool]] = []
    released: list[int] = []
    bench: Hooked

    def in_fours(answer: Answer) -> Any:
        got.append((len(answer.parts), answer.final))
        if not answer.final and len(answer.parts) < 4:
            return HOLD
        released.append(len(answer.parts))
        return None

    bench = hooked(after_chunk=in_fours)
    await bench.answer(**STREAM)
    assert got[-1][1] is True
    assert all(number >= 4 for number in released[:-1])
    assert sum(released) == len(bench.chunks)
    assert bench.count("after_chunk", "held") == len(got) - len(released)
    assert bench.transcript.completion_tokens == 10


async def test_an_answer_that_is_held_at_its_end_is_not_passed_on(hooked: Run) -> None:
    bench = hooked(after_chunk=lambda answer: HOLD)
    answer = await bench.answer(**STREAM)
    assert json.loads(answer.body)["error"]["code"] == "hook_failed"
    assert bench.sent == b""


@pytest.mark.parametrize("how", ["refused", "failed"])
async def test_a_stream_that_has_begun_ends_with_an_error_and_the_engine_is_aborted(
    hooked: Run, engine: SimulatedEngine, how: str
) -> None:
    bench: Hooked

    async def third(answer: Answer) -> Any:
        passed = answer.request.state.setdefault("passed", [])
        if len(passed) >= 3:
            return refuse(answer) if how == "refused" else fail(answer)
        passed += answer.parts
        return None

    bench = hooked(after_chunk=third)
    answer = await bench.answer(max_tokens=4000, stream=True, ignore_eos=True)
    assert engine.load().unfinished == 0
    assert (answer.event, answer.status) == (JobEvent.FAIL, 200)
    assert answer.error_code == ("rejected" if how == "refused" else "engine_error")
    *passed, last = bench.chunks
    assert len(passed) >= 3
    assert last["error"]["code"] == ("content_filter" if how == "refused" else "hook_failed")
    assert bench.sent.endswith(b"data: [DONE]\n\n")
    assert bench.transcript.choices()[0]["text"] == "".join(map(content, passed))
    assert bench.transcript.completion_tokens == answer.completion_tokens < 4000


@pytest.mark.parametrize("kind", ["after", "after_chunk"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_dying_engine_ends_no_job_and_sends_no_error(kind: str, stream: bool) -> None:
    engine = SimulatedEngine(Settings(sim_step_ms=1, sim_faults="die_after_steps=3"))
    await engine.start()
    bench = Hooked(engine, 30.0, [], **{kind: no_change})
    run = bench.bench.run(stream=stream, max_tokens=100, ignore_eos=True)
    assert await asyncio.create_task(run.execute()) is Outcome.RELEASE
    await bench.bench.close()
    assert bench.bench.queue.ended == []
    assert b'"error"' not in bench.sent
    assert b"[DONE]" not in bench.sent


# --- continued jobs ---


@pytest.mark.parametrize("name", ["chat", "n", "several prompts, n", "logprobs", "stop string"])
@pytest.mark.parametrize("options", ["", "usage"])
async def test_a_checked_stream_continues_behind_each_entry_of_its_log(
    hooked: Run, engine: SimulatedEngine, name: str, options: str
) -> None:
    body = CLASSES[name] | STREAM_OPTIONS[options] | {"stream": True}
    _, body = await whole_run(engine, body)
    whole = hooked(after_chunk=upper)
    answer = await whole.answer(**body)
    log = whole.bench.queue.log
    assert len(log) > 1
    for n_entries in range(1, len(log) + 1):
        bench = hooked(after_chunk=upper, log=log[:n_entries])
        continued = await bench.answer(**body)
        assert continued.error_code == "", n_entries
        assert chunks_by_choice(bench) == chunks_by_choice(whole)
        assert bench.sent.endswith(b"data: [DONE]\n\n")
        so_far = transcript([*log[:n_entries], *bench.bench.queue.log])
        assert so_far.choices() == whole.transcript.choices()
        assert continued.completion_tokens == answer.completion_tokens


def chunks_by_choice(bench: Hooked) -> dict[int, str]:
    """Several choices take turns, and another attempt may order them otherwise."""
    texts: dict[int, str] = {}
    for chunk in bench.chunks:
        for choice in chunk["choices"]:
            delta = choice.get("text") or choice.get("delta", {}).get("content") or ""
            texts[choice["index"]] = texts.get(choice["index"], "") + delta
    return texts


# --- settings ---


def test_hooks_are_found_by_their_names() -> None:
    hooks = load_hooks(f"before={HERE}:fail, after={HERE}:Hooked.answer,before={HERE}:refuse", 3.0)
    assert hooks is not None
    assert [hook.function for hook in hooks.before] == [fail, refuse]
    assert [hook.function for hook in hooks.at_end] == [Hooked.answer]
    assert hooks.timeout_s == 3.0
    assert load_hooks("", 3.0) is None


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
        load_hooks(names, 3.0)


@pytest.mark.parametrize("names", ["x=a:b", "a:b", "after=a", "after=a:b:c", "after=1:b", "after="])
def test_names_of_another_form_are_refused(names: str) -> None:
    with pytest.raises(ValueError, match="is not before=MODULE:FUNCTION"):
        Settings(hooks=names)


def test_a_refusal_is_the_clients_fault() -> None:
    assert Refusal("x").status == 400
    with pytest.raises(ValueError, match="400 to 499"):
        Refusal("x", status=500)


async def test_an_entry_of_the_log_has_what_was_released_only(hooked: Run) -> None:
    """At no time the log has more of the text than the hooks have let pass."""
    bench: Hooked
    passed = ""

    async def hook(answer: Answer) -> None:
        nonlocal passed
        logged = transcript(bench.bench.queue.log if bench.bench.queue.outputs else [])
        assert passed.startswith("".join(choice["text"] for choice in logged.choices()))
        passed += answer.text

    bench = hooked(after_chunk=hook)
    await bench.answer(**STREAM)

    async def all_logged() -> bool:
        return bench.transcript.choices()[0]["text"] == passed

    await eventually(all_logged, "all is in the log")
    for entry in bench.bench.queue.log:
        list(read_journal(entry.journal, entry.items))

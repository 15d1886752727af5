"""A run that continues a job of an earlier worker, after each entry of the log.

The client's bytes, the journal, the counts and the whole answer have to be those of a run that
nothing has disturbed.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from shared.job.log import Entry, Position, Transcript, read_journal
from shared.job.states import JobState
from shared.store.errors import StoreUnavailable
from tests.harness.settings import Settings
from tests.harness.waiting import eventually
from tests.unit.worker.bench import CHAT, Bench
from worker.core.resume import ContinuationDiffers, SentChunks
from worker.core.run import Outcome
from worker.engines.interface import JOURNAL
from worker.engines.simulated import TOKENS
from worker.engines.simulated.engine import SimulatedEngine

COMPLETIONS, MESSAGES, RESPONSES = "/v1/completions", "/v1/messages", "/v1/responses"
SHORT = {"max_tokens": 9, "ignore_eos": True}
SEVERAL = {"endpoint": COMPLETIONS, "prompt": ["one", "two", "three"], "seed": 4}
USAGE = {"include_usage": True}
RUNNING_USAGE = {"include_usage": True, "continuous_usage_stats": True}
CLASSES: dict[str, dict[str, Any]] = {
    "chat": SHORT,
    "completion": {"endpoint": COMPLETIONS, **SHORT},
    "response": {"endpoint": RESPONSES, "max_output_tokens": 9, "ignore_eos": True},
    "response that ends by itself": {"endpoint": RESPONSES, "seed": 2},
    "ends by itself": {"seed": 2},
    "min_tokens": {"min_tokens": 12, "max_tokens": 20},
    "service tier": {**SHORT, "service_tier": "flex"},
    "n": {"n": 3, "seed": 2},
    "several prompts, n": {**SEVERAL, "n": 2, "max_tokens": 12},
    "prompts of token ids": {**SEVERAL, "prompt": [[1, 2], [3]], "max_tokens": 12},
    "logprobs": {**SHORT, "logprobs": True, "top_logprobs": 2},
    "completion logprobs": {"endpoint": COMPLETIONS, **SHORT, "logprobs": 2},
    "token ids": {**SHORT, "return_token_ids": True},
    "stop string": {"stop": "STOP", "max_tokens": 20, "ignore_eos": True},
    "stop string included": {
        "stop": ["never", "STOP"],
        "include_stop_str_in_output": True,
        "max_tokens": 20,
        "ignore_eos": True,
    },
    "stop string, n": {"stop": "STOP", "max_tokens": 20, "n": 2, "ignore_eos": True},
}
ANTHROPIC = {"endpoint": MESSAGES, "model": "simulated", "max_tokens": 9}
STREAM_OPTIONS: dict[str, dict[str, Any]] = {
    "": {},
    "usage": {"stream_options": USAGE},
    "running usage": {"stream_options": RUNNING_USAGE},
}
CASES = [
    pytest.param(ANTHROPIC, id="messages"),
    pytest.param({**ANTHROPIC, "stream": True}, id="stream, messages"),
    *(pytest.param({**body}, id=name) for name, body in CLASSES.items()),
    *(
        pytest.param({**body, **options, "stream": True}, id=f"stream, {name}, {with_options}")
        for name, body in CLASSES.items()
        for with_options, options in STREAM_OPTIONS.items()
    ),
]


@pytest.fixture
async def engine() -> AsyncIterator[SimulatedEngine]:
    no_time: dict[str, Any] = dict.fromkeys(
        ("sim_step_ms", "sim_step_us_per_seq", "sim_prefill_us_per_token"), 0
    )
    engine = SimulatedEngine(Settings(**no_time))
    await engine.start()
    yield engine
    engine.close()


async def run(
    engine: Any, body: dict[str, Any], before: list[Entry] | None = None, **fields: Any
) -> tuple[Bench, Outcome]:
    """Run a job whose log has `before`."""
    bench = Bench(engine, before or ())
    outcome = await asyncio.create_task(bench.run(**fields, **body).execute())
    await bench.close()
    return bench, outcome


def without_created(data: bytes) -> bytes:
    """Without times, and without the random ids of a response's items."""
    return re.sub(rb'"created(?:_at)?": ?\d+|msg_[0-9a-f]{32}', b"", data)


def created(data: bytes) -> set[bytes]:
    """Times and ids, of which one stream has one."""
    return set(re.findall(rb'"created(?:_at)?": ?\d+|msg_[0-9a-f]{32}', data))


def transcript(entries: list[Entry]) -> Transcript:
    whole = Transcript.empty()
    for entry in entries:
        whole.add(read_journal(entry.journal, entry.items))
    return whole


async def whole_run(engine: Any, body: dict[str, Any]) -> tuple[Bench, dict[str, Any]]:
    """A run that nothing disturbs; the stop string is one that spans two tokens of its answer."""
    if "STOP" in str(body.get("stop")):
        bench, _ = await run(engine, {"max_tokens": 20, "n": body.get("n")})
        text = transcript(bench.queue.log).choices()[0]["text"]
        at = text.index(" ", 50)
        stop = text[at - 2 : at + 3]
        body = {**body, "stop": stop if body["stop"] == "STOP" else ["never", stop]}
    bench, outcome = await run(engine, body)
    assert outcome is Outcome.FINISHED
    assert bench.queue.answer.state is JobState.COMPLETED
    return bench, body


@pytest.mark.parametrize("body", CASES)
async def test_a_job_continues_behind_each_entry_of_its_log(
    engine: SimulatedEngine, body: dict[str, Any]
) -> None:
    undisturbed, body = await whole_run(engine, body)
    log, answer = undisturbed.queue.log, undisturbed.queue.answer
    assert len(log) > 3
    for n_entries in range(1, len(log) + 1):
        before = log[:n_entries]
        bench, outcome = await run(engine, body, before)
        assert outcome is Outcome.FINISHED, n_entries
        queue = bench.queue
        assert without_created(queue.sent) == without_created(undisturbed.queue.sent)
        assert len(created(queue.sent)) <= (2 if body.get("endpoint") == RESPONSES else 1)
        assert transcript([*before, *queue.log]) == transcript(log)
        assert without_created(queue.answer.body) == without_created(answer.body)
        assert queue.answer._replace(body=b"") == answer._replace(body=b"")
        again = bench.metrics.tokens_decoded_again._value.get()
        assert (queue.restarted, again) == ([], 0)
        new = sum(transcript(queue.log).tokens.values())
        taken_over = bench.metrics.tokens_taken_over._value.get()
        assert taken_over + new == answer.completion_tokens
    assert new == 0  # the last attempt had every token, and finished without another


async def test_a_job_is_continued_twice(engine: SimulatedEngine) -> None:
    body = {"stream": True, "n": 2, "stream_options": RUNNING_USAGE, **SHORT, "seed": 1}
    undisturbed, _ = await whole_run(engine, body)
    first = undisturbed.queue.log[:3]
    second, _ = await run(engine, body, first)
    bench, outcome = await run(engine, body, [*first, *second.queue.log[:2]])
    assert outcome is Outcome.FINISHED
    assert without_created(bench.queue.sent) == without_created(undisturbed.queue.sent)


async def test_the_stream_keeps_the_time_at_which_it_was_created(
    engine: SimulatedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"stream": True, **SHORT}
    undisturbed, _ = await whole_run(engine, body)
    monkeypatch.setattr("worker.engines.simulated.api.time.time", lambda: 77.0)
    bench, _ = await run(engine, body, undisturbed.queue.log[:4])
    assert bench.queue.sent == undisturbed.queue.sent


async def test_a_job_without_a_past_begins_at_its_beginning(engine: SimulatedEngine) -> None:
    bench = Bench(engine)
    bench.queue.has_past = True
    job_run = bench.run(stream=True, service_tier="flex", **SHORT)
    assert await asyncio.create_task(job_run.execute()) is Outcome.FINISHED
    assert bench.queue.sent.count(b'"service_tier":"flex"') > 5
    assert bench.metrics.tokens_taken_over._value.get() == 0
    await bench.close()


def check_begun_anew(bench: Bench, outcome: Outcome, undisturbed: Bench, code: str) -> None:
    """A plain answer begins anew; one that a client may have seen fails with this code."""
    queue = bench.queue
    assert (queue.restarted, queue.restart_codes) == (["job"], [code])
    if queue.watched:
        assert (outcome, queue.entries) == (Outcome.LOST, [])
    else:
        assert outcome is Outcome.FINISHED
        assert transcript(queue.log) == transcript(undisturbed.queue.log)
        whole = undisturbed.queue.answer
        assert without_created(queue.answer.body) == without_created(whole.body)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("damage", ["lost", "journal", "chunk", "prompt"])
async def test_a_job_whose_log_is_damaged_begins_anew_or_fails(
    engine: SimulatedEngine, stream: bool, damage: str
) -> None:
    body = {"stream": stream, **SHORT}
    undisturbed, _ = await whole_run(engine, body)
    before = undisturbed.queue.log[:4]
    before[2] = {
        "lost": before[2],
        "journal": before[2]._replace(journal=((0, 0, 7, "x"),)),
        "chunk": before[2]._replace(items=((0, 1, 2),)),  # type: ignore[arg-type]
        "prompt": before[2]._replace(journal=((1, 0, (7,), "x"),)),
    }[damage]
    bench = Bench(engine, before)
    bench.queue.lost = 3 if damage == "lost" else 0
    outcome = await asyncio.create_task(bench.run(**body).execute())
    await bench.close()
    check_begun_anew(bench, outcome, undisturbed, "log_lost")
    assert bench.metrics.continuations_refused.labels("log")._value.get() == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_a_job_that_the_engine_refuses_to_continue_begins_anew(stream: bool) -> None:
    body = {"stream": stream, **SHORT}
    engine = SimulatedEngine(Settings(sim_step_ms=0, sim_faults="refuse_past=1"))
    await engine.start()
    undisturbed, _ = await whole_run(engine, body)
    bench, outcome = await run(engine, body, undisturbed.queue.log[:4])
    check_begun_anew(bench, outcome, undisturbed, "worker_lost")
    assert bench.metrics.continuations_refused.labels("engine")._value.get() == 1
    tokens = sum(transcript(undisturbed.queue.log[:4]).tokens.values())
    assert bench.metrics.tokens_decoded_again._value.get() == (0 if stream else tokens)
    engine.close()


async def test_tokens_that_the_engine_would_not_generate_are_refused(
    engine: SimulatedEngine,
) -> None:
    undisturbed, body = await whole_run(engine, SHORT)
    bench, outcome = await run(engine, {**body, "seed": 5}, undisturbed.queue.log[:4])
    assert (outcome, bench.queue.restarted) == (Outcome.FINISHED, ["job"])


class Repeating:
    """An engine that answers with the given chunks; those behind `n_past` are new."""

    kind = "fake"
    dead = False

    def __init__(self, chunks: list[bytes], n_past: int) -> None:
        self._chunks, self._n_past = chunks, n_past

    def close(self) -> None:
        pass

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        journal = JOURNAL.get()
        assert journal is not None
        journal.prompt(0, 3)
        for number, chunk in enumerate(self._chunks):
            if number >= self._n_past:
                journal.delta(0, 0, (number,), "x")
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def event(text: str, index: int = 0, **fields: Any) -> bytes:
    delta = {"content": text, **fields}
    value = {"id": "a", "created": 5, "choices": [{"index": index, "delta": delta}]}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def tool_call(call_id: str, name: str) -> bytes:
    return event("", tool_calls=[{"index": 0, "id": call_id, "function": {"name": name}}])


A, B, C = event("a"), event("b"), event("c")
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("again", "problem"),
    [
        ([A, B, C, DONE], ""),
        ([A, C, B, DONE], "another one than was sent"),
        ([A], "were not made again"),
        ([A, event("b", index=1), C, DONE], "another one than was sent"),
        ([event("a", role="user"), B, C, DONE], "another one than was sent"),
        ([b"data: {broken\n\n", B, C, DONE], "another one than was sent"),
    ],
)
async def test_chunks_that_differ_from_those_that_were_sent_fail_the_job(
    again: list[bytes], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, _ = await run(Repeating([A, B, C], 0), {"stream": True})
    (entry,) = first.queue.log
    before = [entry._replace(items=entry.items[:-1])]
    bench, outcome = await run(Repeating(again, 2), {"stream": True}, before)
    if not problem:
        assert outcome is Outcome.FINISHED
        assert bench.queue.sent.endswith(C + DONE)
        return
    assert (outcome, bench.queue.restarted) == (Outcome.LOST, ["job"])
    assert bench.metrics.continuations_refused.labels("different")._value.get() == 1
    assert problem in caplog.text
    assert "content" not in caplog.text  # no part of an answer is logged


async def test_a_tool_calls_random_id_is_the_one_that_was_sent_first() -> None:
    first, _ = await run(Repeating([tool_call("call_1", "f")], 0), {"stream": True})
    again = [tool_call("call_2", "f"), tool_call("call_3", "g"), DONE]
    bench, outcome = await run(Repeating(again, 1), {"stream": True}, first.queue.log)
    assert outcome is Outcome.FINISHED
    assert bench.queue.sent == tool_call("call_1", "f") + tool_call("call_3", "g") + DONE
    other, outcome = await run(
        Repeating([tool_call("call_2", "h"), DONE], 1), {"stream": True}, first.queue.log
    )
    assert (outcome, other.queue.restarted) == (Outcome.LOST, ["job"])


def named(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def test_what_is_random_in_anthropics_events_may_differ() -> None:
    def events(by: str, n_cached: int) -> list[bytes]:
        usage = {"input_tokens": 9 - n_cached, "cache_read_input_tokens": n_cached}
        block = {"type": "tool_use", "id": f"call_{by}", "name": "f", "input": {}}
        signature = {"type": "signature_delta", "signature": by}
        return [
            named("message_start", message={"id": "job", "usage": usage}),
            named("content_block_start", content_block=block, index=0),
            named("content_block_delta", delta=signature, index=1),
            named("message_delta", delta={"stop_reason": "tool_use"}, usage=usage),
            named("message_stop"),
        ]

    sent = SentChunks(events("a", 0))
    assert [sent.unsent(event) for event in events("b", 4)] == [None] * 5
    sent.check_all_made()


@pytest.mark.parametrize(
    "other",
    [
        named("content_block_delta", delta={"type": "text_delta", "text": "b"}, index=0),
        named("content_block_delta", delta={"type": "text_delta", "text": "a"}, index=1),
        named("content_block_stop", index=0),
    ],
)
def test_other_events_of_anthropics_are_another_answer(other: bytes) -> None:
    sent = named("content_block_delta", delta={"type": "text_delta", "text": "a"}, index=0)
    with pytest.raises(ContinuationDiffers):
        SentChunks([sent]).unsent(other)


def test_what_is_the_workers_and_not_the_answers_may_differ() -> None:
    def chunk(**fields: Any) -> bytes:
        return b"data: " + json.dumps({"choices": [], **fields}).encode() + b"\n\n"

    usage = {"total_tokens": 5}
    one = chunk(system_fingerprint="a", usage={**usage, "prompt_tokens_details": None})
    other = chunk(system_fingerprint="b", usage={**usage, "prompt_tokens_details": {"cached": 1}})
    assert SentChunks([one]).unsent(other) is None
    with pytest.raises(ContinuationDiffers):
        SentChunks([one]).unsent(chunk(usage={"total_tokens": 6}))


async def test_the_log_is_read_once_redis_is_back(engine: SimulatedEngine) -> None:
    undisturbed, body = await whole_run(engine, {"stream": True, **SHORT})
    bench = Bench(engine, undisturbed.queue.log[:3])
    read, failures = bench.queue.read, iter(range(2))

    async def fail_twice(job_id: str, after: Position, most: int) -> list[Entry]:
        if next(failures, None) is not None:
            raise StoreUnavailable("away")
        return await read(job_id, after, most)

    bench.queue.read = fail_twice  # type: ignore[method-assign]
    assert await asyncio.create_task(bench.run(**body).execute()) is Outcome.FINISHED
    assert without_created(bench.queue.sent) == without_created(undisturbed.queue.sent)
    await bench.close()


@pytest.mark.parametrize("release", [True, False])
async def test_a_run_that_waits_for_its_log_can_be_aborted(
    engine: SimulatedEngine, release: bool
) -> None:
    undisturbed, body = await whole_run(engine, SHORT)
    bench = Bench(engine, undisturbed.queue.log[:3])
    reads: list[Position] = []

    async def fail(job_id: str, after: Position, most: int) -> list[Entry]:
        reads.append(after)
        raise StoreUnavailable("away")

    async def has_read() -> bool:
        return bool(reads)

    bench.queue.read = fail  # type: ignore[method-assign]
    job_run = bench.run(**body)
    executing = asyncio.create_task(job_run.execute())
    await eventually(has_read, "the log is read")
    job_run.abort("handed_over", release=release)
    assert await executing is (Outcome.RELEASE if release else Outcome.LOST)
    assert (bench.queue.entries, bench.queue.restarted) == ([], [])
    await bench.close()


def test_the_classes_have_all_endpoints_and_every_option() -> None:
    endpoints = {body.get("endpoint", CHAT) for body in CLASSES.values()}
    assert endpoints == {CHAT, COMPLETIONS, RESPONSES}
    assert len(TOKENS) > 20

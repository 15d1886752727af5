"""`flotilla bench`: when it sends what, what it measures, and what it reports."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.bench import figures, report
from gateway.bench.arrivals import arrival_times
from gateway.bench.call import Target
from gateway.bench.load import Load, Planned
from gateway.bench.objectives import ObjectiveError, milliseconds, parse_goodput, parse_slo
from gateway.bench.outcome import Outcome
from gateway.bench.prompts import (
    Prompt,
    PromptLength,
    PromptsError,
    random_prompts,
    read_prompts,
)
from gateway.bench.queue_waits import add_queue_waits
from gateway.bench.trial import TrialError, prompt_length
from tests.waiting import eventually

PROMPT = Prompt("one two three", 4)


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 8.0, math.inf])
def test_the_last_request_is_due_when_the_rate_says(burstiness: float) -> None:
    times = arrival_times(50, 5.0, burstiness, random.Random(1))
    assert times == sorted(times)
    assert times[-1] == pytest.approx(10.0)


def test_an_infinite_rate_sends_all_at_once_and_infinite_burstiness_has_constant_gaps() -> None:
    assert arrival_times(3, math.inf, 1.0, random.Random(1)) == [0.0, 0.0, 0.0]
    times = arrival_times(20, 4.0, math.inf, random.Random(1))
    assert [late - early for early, late in pairwise(times)] == pytest.approx([0.25] * 19)


def test_random_prompts_differ_and_repeat_with_their_seed() -> None:
    prompts = [next(made) for made in (random_prompts(8, 4, 1), random_prompts(8, 4, 2))]
    assert prompts[0] != prompts[1]
    assert next(random_prompts(8, 4, 1)) == prompts[0]
    assert len(prompts[0].text.split()) == 8


@pytest.mark.parametrize(
    ("short", "long", "tokens", "words"),
    [
        ((16, 16), (144, 144), 128, 128),
        ((16, 26), (144, 154), 128, 118),  # a template of ten tokens
        ((16, 32), (144, 288), 128, 64),  # two tokens a word
        ((16, 26), (144, 154), 5, 1),
        ((16, 0), (144, 0), 128, 128),  # an engine that does not count
    ],
)
def test_the_number_of_words_follows_from_two_answers(
    short: tuple[int, int], long: tuple[int, int], tokens: int, words: int
) -> None:
    assert PromptLength.measured(short, long).words(tokens) == words


def test_prompts_of_a_file_are_those_of_vllms_custom_dataset(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a", "output_tokens": 3}\n\n{"prompt": "b", "output_tokens": 5}\n')
    assert read_prompts(path, None) == [Prompt("a", 3), Prompt("b", 5)]
    assert read_prompts(path, 9) == [Prompt("a", 9), Prompt("b", 9)]
    path.write_text('{"prompt": "a"}\n')
    with pytest.raises(PromptsError, match="line 1"):
        read_prompts(path, None)
    path.write_text("\n")
    with pytest.raises(PromptsError, match="no prompts"):
        read_prompts(path, None)


@pytest.mark.parametrize(
    ("text", "ms"), [("500", 500), ("1.5s", 1500), ("300ms", 300), ("2m", 120_000)]
)
def test_durations(text: str, ms: float) -> None:
    assert milliseconds(text) == ms


@pytest.mark.parametrize("text", ["ttft_p99", "ttft=1s", "p99_ttft=1s", "ttft_p101=1s", "failed=x"])
def test_a_wrong_objective_is_explained(text: str) -> None:
    with pytest.raises(ObjectiveError, match=r"write|number|percentile"):
        parse_slo(text)


def test_goodput_is_written_as_in_vllm() -> None:
    assert parse_goodput(["ttft:500 tpot:50", "e2el:2s"]) == {"ttft": 500, "tpot": 50, "e2el": 2000}
    with pytest.raises(ObjectiveError, match="ttft, tpot, e2el"):
        parse_goodput(["itl:5"])


def outcomes() -> list[Outcome]:
    """Ten answers of 11 chunks and one failure."""
    good = [
        Outcome(
            started=100.0 + i,
            ttft=0.1 * (i + 1),
            itl=[0.02] * 10,
            latency=0.1 * (i + 1) + 0.2,
            prompt_tokens=7,
            output_tokens=11,
        )
        for i in range(10)
    ]
    return [*good, Outcome(error="503: no worker", status=503)]


def test_figures_have_vllms_names_and_meaning() -> None:
    found = figures.result(outcomes(), 20.0, {"ttft": 500, "tpot": 20.5}, (50, 99))
    assert found["completed"] == 10
    assert found["failed"] == 1
    assert found["request_throughput"] == pytest.approx(0.5)
    assert found["request_goodput"] == pytest.approx(0.25)
    assert found["output_throughput"] == pytest.approx(5.5)
    assert found["total_token_throughput"] == pytest.approx(9.0)
    assert found["mean_ttft_ms"] == pytest.approx(550)
    assert found["median_ttft_ms"] == found["p50_ttft_ms"] == pytest.approx(550)
    assert found["p99_ttft_ms"] == pytest.approx(991)
    assert found["mean_tpot_ms"] == found["mean_itl_ms"] == pytest.approx(20)
    assert found["mean_e2el_ms"] == pytest.approx(750)
    assert found["max_concurrent_requests"] == 2


def test_without_an_answer_there_are_figures_and_no_objective_is_met() -> None:
    found = figures.result([Outcome(error="x")], 1.0, {"ttft": 1})
    assert found["completed"] == found["output_throughput"] == found["mean_ttft_ms"] == 0
    assert not parse_slo("ttft_p99=1s").met(found)


def test_objectives_are_limits_above_or_below() -> None:
    found = figures.result(outcomes(), 20.0, {})
    met = {text: parse_slo(text).met(found) for text in (
        "ttft_p99=1s", "ttft_p99=900", "itl_mean=21ms", "e2el_median=0.5s",
        "output_throughput=5", "output_throughput=6", "failed=1", "failed=0",
    )}  # fmt: skip
    assert list(met.values()) == [True, False, True, False, True, False, True, False]
    assert parse_slo("ttft_p99=1s").line(found) == "p99_ttft_ms <= 1000: 991.00, met"


def test_the_table_compares_with_an_earlier_result() -> None:
    now = figures.result(outcomes(), 20.0, {}) | {"request_rate": 2.0, "max_concurrency": None}
    before = now | {"output_throughput": 5.0, "request_rate": 1.0}
    del before["mean_e2el_ms"]
    lines = report.table(now, ["ttft", "e2el"], before).splitlines()
    assert "Output token throughput (tok/s):         5.50       5.00           +10.0 %" in lines
    assert "Mean E2EL (ms):                          750.00     -" in lines
    assert report.differences(now, before) == ["request_rate: 1.0 before, 2.0 now"]


class Server:
    """Answers as `behave` says; counts the requests that are open."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.open = self.most_open = 0
        self.status = 200
        self.events = [
            {"choices": [{"delta": {"role": "assistant"}}]},
            {"choices": [{"delta": {"content": "a"}}]},
            {"choices": [], "usage": {"prompt_tokens": 13, "completion_tokens": 2}},
            "[DONE]",
        ]
        self.pause_s = 0.0
        self.headers: dict[str, str] = {}
        self.job: dict[str, float | None] = {}

    async def show_job(self, request: web.Request) -> web.Response:
        return web.json_response(self.job)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        if self.status != 200:
            return web.json_response({"error": {"message": "not now"}}, status=self.status)
        self.open += 1
        self.most_open = max(self.open, self.most_open)
        response = web.StreamResponse(headers={"content-type": "text/event-stream", **self.headers})
        await response.prepare(request)
        await response.write(b": comment\n\n")
        for event in self.events:
            data = event if isinstance(event, str) else json.dumps(event)
            await response.write(f"data: {data}\n\n".encode())
            await asyncio.sleep(self.pause_s)
        self.open -= 1
        return response


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def target(server: Server) -> AsyncIterator[Target]:
    """The server's address, on a free port."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.answer)
    app.router.add_post("/v1/completions", server.answer)
    app.router.add_get("/jobs/{id}", server.show_job)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    yield Target(f"http://127.0.0.1:{port}", "m", extra_body={"temperature": 0})
    await runner.cleanup()


def planned(n: int) -> list[Planned]:
    return [Planned(0.0, PROMPT)] * n


async def test_a_request_is_vllms_and_its_times_are_those_of_its_chunks(
    server: Server, target: Target
) -> None:
    server.pause_s = 0.02
    run = await Load(target, planned(1)).execute()
    [outcome] = run.outcomes
    assert outcome.error == ""
    assert (outcome.prompt_tokens, outcome.output_tokens, len(outcome.itl)) == (13, 2, 1)
    assert 0 < outcome.ttft < outcome.latency
    assert outcome.ttft + sum(outcome.itl) == pytest.approx(outcome.latency)
    assert server.bodies == [
        {
            "model": "m",
            "messages": [{"role": "user", "content": PROMPT.text}],
            "max_completion_tokens": 4,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
            "temperature": 0,
        }
    ]


async def test_a_fleets_jobs_show_how_long_they_waited(server: Server, target: Target) -> None:
    server.headers = {"x-flotilla-job-id": "job_1"}
    server.job = {"created_at": 10.0, "started_at": 10.25}
    run = await Load(target, planned(3)).execute()
    await add_queue_waits(target, run.outcomes)
    assert [outcome.queue_wait for outcome in run.outcomes] == [0.25] * 3
    assert figures.result(run.outcomes, 1.0, {})["mean_queue_wait_ms"] == 250
    server.job = {"created_at": 10.0, "started_at": None}
    again = await Load(target, planned(1)).execute()
    await add_queue_waits(target, again.outcomes)
    assert "mean_queue_wait_ms" not in figures.result(again.outcomes, 1.0, {})


async def test_another_server_shows_no_wait(target: Target) -> None:
    run = await Load(target, planned(1)).execute()
    await add_queue_waits(target, run.outcomes)
    assert run.outcomes[0].queue_wait is None


async def test_no_more_requests_are_open_than_allowed(server: Server, target: Target) -> None:
    server.pause_s = 0.005
    run = await Load(target, planned(12), max_concurrency=3).execute()
    assert len(run.outcomes) == 12
    assert server.most_open == 3


async def test_after_its_time_nothing_is_sent(server: Server, target: Target) -> None:
    server.pause_s = 0.02
    endless = (Planned(0.0, PROMPT) for _ in iter(int, 1))
    run = await Load(target, endless, max_concurrency=2, seconds=0.3).execute()
    assert run.open == 0
    assert len(run.outcomes) == len(server.bodies)
    none = await Load(target, planned(3), seconds=0.0).execute()
    assert none.outcomes == []


@pytest.mark.parametrize(
    ("events", "error"),
    [
        ([{"choices": [{}]}], "the stream ended before its end mark"),
        (["[DONE]"], "the answer has no chunk with a choice"),
        ([{"choices": [{}]}, {"error": {"message": "worker lost"}}], "200: worker lost"),
        (["{"], "JSONDecodeError"),
        (["[]"], "AttributeError"),
    ],
)
async def test_a_stream_that_is_not_whole_has_failed(
    server: Server, target: Target, events: list[Any], error: str
) -> None:
    server.events = events
    run = await Load(target, planned(1)).execute()
    assert error in run.outcomes[0].error


async def test_a_refusal_has_its_status_and_message(server: Server, target: Target) -> None:
    server.status = 503
    run = await Load(target, planned(2)).execute()
    assert [outcome.error for outcome in run.outcomes] == ["503: not now"] * 2
    with pytest.raises(TrialError, match="not now") as raised:
        await prompt_length(target, 5.0)
    assert raised.value.status == 503


async def test_a_cancelled_load_keeps_what_has_ended(server: Server, target: Target) -> None:
    server.pause_s = 0.01
    endless = (Planned(0.0, PROMPT) for _ in iter(int, 1))
    load = Load(target, endless, max_concurrency=2)

    async def has_ended() -> bool:
        return bool(load.run.outcomes)

    running = asyncio.ensure_future(load.execute())
    await eventually(has_ended, "a request has ended")
    running.cancel()
    run = await running
    assert run.interrupted
    assert run.outcomes

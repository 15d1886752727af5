"""Real vLLM behind the queue: the same bytes as vLLM's own application, and the real SDK.

The engine is in this process, started once per run; the gateway is a process. A worker in this
process serves the engine through the queue, and the engine's application is also called directly.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI, OpenAI

from shared.job.job_log import Delta, parse_segments, read_journal
from tests.harness.asgi_client import call
from tests.harness.fleet import Process
from tests.harness.servers import RedisServer
from tests.harness.vllm_fleet import vllm_fleet
from tests.harness.waiting import eventually
from tests.unit.worker.buffers import make_buffer
from worker.demo import MODEL_NAME
from worker.engines.interface import JOB, JOURNAL, Engine, JobFacts, Journal

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.vllm]

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
JSON = {"content-type": "application/json"}
QUESTION = [{"role": "user", "content": "What is Flotilla?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
ASK_WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def gateway(
    vllm_engine: Engine, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Process]:
    """A gateway with a worker that serves the run's engine."""
    async with vllm_fleet(vllm_engine, redis_server, tmp_path_factory.mktemp("vllm")) as gateway:
        yield gateway


@pytest_asyncio.fixture(loop_scope="session")
async def api(gateway: Process) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=gateway.url, timeout=120) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="session")
async def sdk(gateway: Process) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key="any", max_retries=0, timeout=120
    ) as client:
        yield client


def comparable(body: bytes) -> bytes:
    """A body without what must differ: the id, the time, and the random id of a tool call."""
    body = re.sub(rb'"id":"(chatcmpl|cmpl)-[^"]*"', b'"id":"ID"', body)
    body = re.sub(rb'"id":"(chatcmpl-tool|call_)[^"]*"', b'"id":"TOOL"', body)
    body = re.sub(rb"(ID|call_|chatcmpl-tool-)[0-9a-f]{16,}", b"TOOL", body)
    return re.sub(rb'"created":\d+', b'"created":0', body)


RUNS = 20

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": QUESTION, "max_tokens": 40}),
    "chat usage": (
        CHAT,
        {"messages": QUESTION, "max_tokens": 20, "stream_options": {"include_usage": True}},
    ),
    "chat two choices": (CHAT, {"messages": QUESTION, "max_tokens": 20, "n": 2}),
    "chat logprobs": (
        CHAT,
        {"messages": QUESTION, "max_tokens": 12, "logprobs": True, "top_logprobs": 3},
    ),
    "chat stop": (CHAT, {"messages": QUESTION, "max_tokens": 40, "stop": ["durable"]}),
    "chat long": (CHAT, {"messages": QUESTION, "max_tokens": 300, "ignore_eos": True}),
    "chat return token ids": (
        CHAT,
        {"messages": QUESTION, "max_tokens": 10, "return_token_ids": True},
    ),
    "tool call": (CHAT, {"messages": ASK_WEATHER, "tools": [WEATHER], "max_tokens": 60}),
    "tool choice": (
        CHAT,
        {
            "messages": ASK_WEATHER,
            "tools": [WEATHER],
            "max_tokens": 60,
            "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        },
    ),
    "json schema": (
        CHAT,
        {
            "messages": QUESTION,
            "max_tokens": 40,
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "name": "answer",
                    "schema": {
                        "type": "object",
                        "properties": {"ok": {"type": "boolean"}},
                        "required": ["ok"],
                        "additionalProperties": False,
                    },
                },
            },
        },
    ),
    "completion": (COMPLETIONS, {"prompt": "A queue is", "max_tokens": 30}),
    "completion two prompts": (
        COMPLETIONS,
        {"prompt": ["A queue is", "Once upon a time"], "max_tokens": 15},
    ),
    "completion logprobs": (COMPLETIONS, {"prompt": "A queue is", "max_tokens": 8, "logprobs": 2}),
    "completion echo": (COMPLETIONS, {"prompt": "A queue is", "max_tokens": 8, "echo": True}),
    "completion two choices": (COMPLETIONS, {"prompt": "A queue is", "max_tokens": 8, "n": 2}),
    "refused": (CHAT, {"messages": QUESTION, "max_tokens": -1}),
    "too long": (COMPLETIONS, {"prompt": "word " * 8000, "max_tokens": 5}),
    "bad schema": (
        CHAT,
        {
            "messages": QUESTION,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "nonsense"}},
            },
        },
    ),
}


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("case", CASES)
async def test_the_same_bytes_as_vllms_own_application(
    case: str, stream: bool, api: httpx.AsyncClient, vllm_engine: Engine
) -> None:
    path, fields = CASES[case]
    body = {"model": MODEL_NAME, "temperature": 0, "stream": stream, **fields}
    if not stream:
        body.pop("stream_options", None)
    raw = json.dumps(body).encode()
    own = await call(vllm_engine, "POST", path, raw)
    ours = await api.post(path, content=raw, headers=JSON)
    assert ours.status_code == own.status
    assert ours.headers["content-type"] == own.headers["content-type"]
    assert normal_form(ours.content) == normal_form(own.body)
    if own.status == 200 and '"error"' not in ours.text:
        assert ours.headers["x-flotilla-job-id"] in ours.text


def normal_form(body: bytes) -> dict[Any, tuple[list[str], dict[str, Any]]]:
    """What a body's events are, comparable between two runs of the same greedy request.

    Two things are not defined in vLLM and may differ from run to run: which sequence of a step
    speaks first, so choices are kept apart; and where one chunk ends and the next begins, because
    deltas that a reader has not taken in time are merged. So, for each choice: the chunks without
    what grows, in order, and all that has grown (text, ids, logprobs, tool arguments). Of chunks
    that differ only in what grows, one is left; a chunk in which nothing grows counts each time.
    """
    choices: dict[Any, tuple[list[str], dict[str, Any]]] = {}
    for event in comparable(body).split(b"\n\n"):
        if event.startswith(b":"):  # the gateway's comment before a first token that takes long
            continue
        if not event.startswith(b'data: {"id"'):
            choices.setdefault("other", ([], {}))[0].append(event.decode())
            continue
        for chunk in _one_tool_call_each(json.loads(event.removeprefix(b"data: "))):
            index = chunk["choices"][0]["index"] if chunk["choices"] else "usage"
            shapes, grown = choices.setdefault(index, ([], {}))
            new = _cut_out(chunk)
            for path, value in new.items():
                grown[path] = grown[path] + value if path in grown else value
            for shape in _shapes(chunk, grows=any(new.values())):
                if not any(new.values()) or shapes[-1:] != [shape]:
                    shapes.append(shape)
    return choices


def _shapes(chunk: dict[str, Any], *, grows: bool) -> Iterator[str]:
    """A chunk as text. What grows in a choice's last chunk counts as one of its own before it: on a
    busy machine nothing but that one may be left of an answer."""
    whole = json.dumps(chunk)
    if not (grows and chunk["choices"]):
        yield whole
        return
    choice = chunk["choices"][0]
    has_ended, choice["finish_reason"] = bool(choice["finish_reason"]), None
    choice.pop("stop_reason", None)  # chats have it in the last one only
    yield json.dumps(chunk)
    if has_ended:
        yield whole


def _one_tool_call_each(chunk: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Merged deltas of a tool call stand beside each other in a list."""
    delta = chunk["choices"][0].get("delta", {}) if chunk["choices"] else {}
    if not delta.get("tool_calls"):
        yield chunk
        return
    for tool_call in delta["tool_calls"]:
        delta["tool_calls"] = [tool_call]
        yield copy.deepcopy(chunk)


_GROWING = {"content", "reasoning", "text", "arguments", "token_ids"} | {
    "tokens",
    "token_logprobs",
    "top_logprobs",
    "text_offset",
}


def _cut_out(value: Any, path: str = "") -> dict[str, Any]:
    """Take what grows out of a chunk; returns it by its path."""
    grown: dict[str, Any] = {}
    for name, inner in list(enumerate(value) if isinstance(value, list) else value.items()):
        here = f"{path}.{name}"
        if name in _GROWING and isinstance(inner, str | list):
            grown[here] = inner
            value[name] = "..."
        elif isinstance(inner, dict | list):
            grown |= _cut_out(inner, here)
    return grown


async def test_every_run_has_the_same_chunks(api: httpx.AsyncClient, vllm_engine: Engine) -> None:
    """Byte by byte where no delta was merged, which on an idle machine is nearly every run."""
    body = {"model": MODEL_NAME, "temperature": 0, "stream": True, "messages": QUESTION}
    raw = json.dumps({**body, "max_tokens": 12, "stream_options": {"include_usage": True}}).encode()
    identical = 0
    for _ in range(RUNS):
        own = await call(vllm_engine, "POST", CHAT, raw)
        ours = await api.post(CHAT, content=raw, headers=JSON)
        assert normal_form(ours.content) == normal_form(own.body)
        identical += comparable(ours.content) == comparable(own.body)
    print(f"{identical} of {RUNS} runs were the same byte by byte")
    assert identical


async def test_a_readable_answer_through_the_sdk(sdk: AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(
        model=MODEL_NAME, messages=QUESTION, temperature=0, max_tokens=80
    )
    assert answer.choices[0].message.content.startswith("Flotilla is")
    assert answer.choices[0].finish_reason == "stop"
    stream = await sdk.chat.completions.create(
        model=MODEL_NAME, messages=QUESTION, temperature=0, max_tokens=80, stream=True
    )
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == answer.choices[0].message.content


async def test_the_synchronous_sdk(gateway: Process) -> None:
    def ask() -> tuple[str, str]:
        with OpenAI(base_url=f"{gateway.url}/v1", api_key="any", timeout=120) as client:
            plain = client.completions.create(
                model=MODEL_NAME, prompt="A queue is", temperature=0, max_tokens=20
            )
            stream = client.completions.create(
                model=MODEL_NAME, prompt="A queue is", temperature=0, max_tokens=20, stream=True
            )
            return plain.choices[0].text, "".join(chunk.choices[0].text for chunk in stream)

    plain, streamed = await asyncio.to_thread(ask)
    assert plain == streamed
    assert plain.strip()


async def test_a_tool_call_through_the_sdk(sdk: AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(
        model=MODEL_NAME, messages=ASK_WEATHER, tools=[WEATHER], temperature=0, max_tokens=60
    )
    (tool_call,) = answer.choices[0].message.tool_calls
    assert tool_call.function.name == "get_weather"
    assert json.loads(tool_call.function.arguments) == {"city": "Paris"}
    assert answer.choices[0].finish_reason == "tool_calls"


async def test_errors_through_the_sdk(sdk: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        await sdk.chat.completions.create(model="nope", messages=QUESTION)
    with pytest.raises(openai.BadRequestError):
        await sdk.chat.completions.create(model=MODEL_NAME, messages=QUESTION, temperature=-1)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_disconnect_aborts_the_engines_request(
    stream: bool, api: httpx.AsyncClient, vllm_engine: Engine
) -> None:
    body = {
        "model": MODEL_NAME,
        "messages": QUESTION,
        "stream": stream,
        "max_tokens": 3000,
        "ignore_eos": True,
    }
    request = asyncio.create_task(api.post(CHAT, json=body))

    async def running() -> bool:
        return vllm_engine.load().unfinished == 1

    async def idle() -> bool:
        return vllm_engine.load().unfinished == 0

    await eventually(running, "it runs")
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    await eventually(idle, "the engine's running count is back to 0")


async def test_a_job_from_submit_to_result(api: httpx.AsyncClient) -> None:
    body = {"model": MODEL_NAME, "messages": QUESTION, "temperature": 0, "max_tokens": 80}
    submitted = await api.post("/jobs", json={"endpoint": CHAT, "body": body})
    assert submitted.status_code == 202
    path = submitted.headers["location"]

    async def done() -> Any:
        job = (await api.get(path, params={"wait": 10})).json()
        return job if job["state"] == "completed" else None

    job = await eventually(done, "it completes")
    direct = (await api.post(CHAT, json=body)).json()
    assert job["result"]["choices"] == direct["choices"]
    assert job["usage"] == {name: direct["usage"][name] for name in job["usage"]}
    assert job["text"] == direct["choices"][0]["message"]["content"]
    events = (await api.get(f"{path}/events")).text
    deltas = re.findall(r"^event: delta\nid: \d+\ndata: (.*)$", events, re.MULTILINE)
    text = "".join(choice["text"] for d in deltas for choice in json.loads(d)["choices"])
    assert text == job["text"]


async def test_running_text_and_cancel(api: httpx.AsyncClient, vllm_engine: Engine) -> None:
    body = {"model": MODEL_NAME, "messages": QUESTION, "max_tokens": 3000, "ignore_eos": True}
    path = (await api.post("/jobs", json={"body": body})).headers["location"]

    async def text() -> Any:
        return (await api.get(path)).json().get("text")

    shown = await eventually(text, "some text is there")
    job = (await api.post(f"{path}/cancel")).json()
    assert job["state"] == "cancelled"
    assert job["text"].startswith(shown)

    async def idle() -> bool:
        return vllm_engine.load().unfinished == 0

    await eventually(idle, "the engine's running count is back to 0")


async def test_vllms_own_metrics_are_exported_too(vllm_engine: Engine) -> None:
    from prometheus_client import REGISTRY, generate_latest

    assert b"vllm:num_requests_running" in generate_latest(REGISTRY)


async def test_a_tenant_finds_no_prompt_of_another_one_in_the_cache(vllm_engine: Engine) -> None:
    """It could tell from the time of its answers what others have sent."""
    from prometheus_client import REGISTRY

    def hits() -> float:
        return sum(
            sample.value
            for family in REGISTRY.collect()
            for sample in family.samples
            if sample.name == "vllm:prefix_cache_hits_total"
        )

    async def found(tenant: str) -> float:
        before, body = (
            hits(),
            {"model": MODEL_NAME, "prompt": list(range(20, 420)), "max_tokens": 1},
        )
        JOB.set(JobFacts(tenant))
        assert (await call(vllm_engine, "POST", COMPLETIONS, body)).status == 200
        return hits() - before

    counts = [await found(tenant) for tenant in ("a", "a", "b", "b", "a")]
    assert [count > 0 for count in counts] == [False, True, False, True, True], counts


async def test_the_readmes_call(gateway: Process) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (call,) = re.findall(r"```sh\n(curl .*?)```", readme, re.DOTALL)
    ran = await asyncio.create_subprocess_exec(
        "sh",
        "-euc",
        call.replace("http://127.0.0.1:8000", gateway.url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await asyncio.wait_for(ran.communicate(), 120)
    assert ran.returncode == 0, errors.decode()
    assert "data: [DONE]" in output.decode()


async def test_prompts_of_one_call_start_in_different_turns_of_the_loop() -> None:
    """The tokens of other requests are sent between them."""
    from vllm.sampling_params import SamplingParams

    from worker.engines.vllm.journal import JournalledEngine

    turn, turns = 0, []

    class Starts:
        model_config = SimpleNamespace(logits_processors=[])

        async def generate(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
            turns.append(turn)
            return
            yield

    async def count() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    class Nothing(Journal):
        def prompt(self, call: int, n_tokens: int) -> None:
            pass

    async def start(engine: JournalledEngine, number: int) -> None:
        JOURNAL.set(Nothing())
        params = SamplingParams(max_tokens=1)
        async for _ in engine.generate({}, params, f"cmpl-x-{number}"):
            raise AssertionError

    counting = asyncio.create_task(count())
    engine = JournalledEngine(Starts())
    await asyncio.gather(*(start(engine, number) for number in range(50)))
    counting.cancel()
    assert len(set(turns)) >= 49


@pytest.mark.parametrize("n", [1, 2])
async def test_the_journal_of_a_whole_answer_keeps_each_delta_as_it_came(n: int) -> None:
    """The deltas are gathered into one answer before the buffer packs what it was given."""
    from vllm.outputs import CompletionOutput, RequestOutput
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    from worker.engines.vllm.journal import JournalledEngine

    texts = ["a", "b", "c"]

    class StubEngine:
        model_config = SimpleNamespace(logits_processors=[])

        async def generate(self, *_: Any, **__: Any) -> AsyncIterator[RequestOutput]:
            for number, text in enumerate(texts):
                for index in range(n):
                    last = number == len(texts) - 1
                    reason = "length" if last else None
                    part = CompletionOutput(index, text, [number], None, None, reason)
                    yield RequestOutput("x", "", [1], None, [part], last and index == n - 1)

    buffer = make_buffer(stream=False)
    JOURNAL.set(buffer)
    params = SamplingParams(n=n, max_tokens=3, output_kind=RequestOutputKind.FINAL_ONLY)
    whole = [o async for o in JournalledEngine(StubEngine()).generate({}, params, "cmpl-x-0")]
    assert [part.token_ids for part in whole[0].outputs] == [[0, 1, 2]] * n
    assert buffer.take()
    (entry,) = parse_segments([buffer.log_flush().segment])
    deltas = [record for record in read_journal(entry.journal) if isinstance(record, Delta)]
    assert [(d.choice, d.token_ids, d.text) for d in deltas] == [
        (index, (number,), text) for number, text in enumerate(texts) for index in range(n)
    ]


async def test_the_prompts_of_an_embedding_are_journalled_before_it_is_computed() -> None:
    """So the job counts as one that has reached the engine, and takes one slot, not two."""
    from vllm.pooling_params import PoolingParams

    from worker.engines.vllm.journal import JournalledEngine

    output = SimpleNamespace(finished=True, num_cached_tokens=0)
    prompts: list[tuple[int, int]] = []
    seen_by_engine: list[list[tuple[int, int]]] = []

    class Recorder(Journal):
        def prompt(self, call: int, n_tokens: int) -> None:
            prompts.append((call, n_tokens))

    class StubEngine:
        async def encode(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
            seen_by_engine.append(list(prompts))
            yield output

    engine = JournalledEngine(StubEngine())
    JOURNAL.set(Recorder())
    for number, token_ids in enumerate([[1, 2, 3], [4]]):
        outputs = engine.encode(
            prompt={"prompt_token_ids": token_ids},
            pooling_params=PoolingParams(task="embed"),
            request_id=f"embd-job_000-{number}",
        )
        assert [each async for each in outputs] == [output]
    assert seen_by_engine == [[(0, 3)], [(0, 3), (1, 1)]]

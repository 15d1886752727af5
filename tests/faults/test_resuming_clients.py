"""Clients with a resuming transport: every stream is whole, whatever happens to its connections."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.harness.client import (
    CHAT,
    MODEL,
    AsyncResumingTransport,
    Limits,
    ResumingTransport,
    chat,
    http,
    job,
    outcomes,
)
from tests.harness.fleet import Process, Stack
from tests.harness.waiting import eventually, wait_for

STREAMS, DROPS = 60, 10
STEP_MS = 60.0
STEADY = {"sim_step_ms": 10, "sim_step_us_per_seq": 0}
PATIENT = Limits(attempts=60, give_up_s=120)


def body(n: int) -> tuple[str, dict[str, Any]]:
    """A request of one of several kinds, for stream number `n`; its path first."""
    common = {"stream": True, "max_tokens": 60, "ignore_eos": True, "seed": n}
    message = chat(f"stream {n}", **common)
    prompt = {"model": MODEL, **common, "prompt": f"stream {n}"}
    return [
        (CHAT, message),
        (CHAT, {**message, "n": 2, "max_tokens": 40}),
        (CHAT, {**message, "stream_options": {"include_usage": True}}),
        ("/v1/completions", prompt),
        ("/v1/completions", {**prompt, "prompt": ["a", "b"], "logprobs": 1, "max_tokens": 40}),
    ][n % 5]


def without_comments(data: bytes) -> bytes:
    return re.sub(rb"(?m)^:.*\n", b"", data)


class DroppingTransport(httpx.AsyncBaseTransport):
    """Loses the connection of each stream after some bytes, a number of times."""

    def __init__(self, inner: httpx.AsyncBaseTransport, drops: int, seed: int) -> None:
        self._inner = inner
        self.drops = drops
        self._random = random.Random(seed)
        self.hosts: list[str] = []
        """Where the requests went that were answered with a stream."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._inner.handle_async_request(request)
        if response.headers["content-type"].startswith("text/event-stream"):
            self.hosts.append(request.url.netloc.decode())
            response.stream = Dropped(response, self, self._random.randint(0, 1500))
        return response


class Dropped(httpx.AsyncByteStream):
    """A response of which only some bytes arrive."""

    def __init__(self, response: httpx.Response, of: DroppingTransport, n_bytes: int) -> None:
        assert isinstance(response.stream, httpx.AsyncByteStream)
        self._stream, self._of, self._left = response.stream, of, n_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self._stream:
            if self._of.drops and len(data) > self._left:
                self._of.drops -= 1
                yield data[: self._left]
                raise httpx.ReadError("dropped by the test")
            self._left -= len(data)
            yield data

    async def aclose(self) -> None:
        await self._stream.aclose()


async def test_streams_that_drop_ten_times_beside_a_killed_gateway(stack: Stack) -> None:
    gateways = [stack.gateway() for _ in range(3)]
    stack.worker(sim_step_ms=STEP_MS, sim_step_us_per_seq=0, sim_max_num_seqs=2 * STREAMS)
    urls = [gateway.url for gateway in gateways]
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncHTTPTransport(verify=False, limits=limits) as inner:
        dropping = [DroppingTransport(inner, DROPS, n) for n in range(STREAMS)]
        streams = [
            asyncio.create_task(stream(n, [*urls[n % 3 :], *urls[: n % 3]], dropping[n]))
            for n in range(STREAMS)
        ]

        async def a_third_has_dropped() -> bool:
            return sum(each.drops for each in dropping) <= STREAMS * DROPS * 2 // 3

        await eventually(a_third_has_dropped, "a third of all drops")
        gateways[0].kill()
        answers = await asyncio.gather(*streams)
    assert [each.drops for each in dropping] == [0] * STREAMS
    assert all(len(set(each.hosts)) > 1 for each in dropping), "every stream changed its gateway"
    async with httpx.AsyncClient(base_url=urls[1], timeout=60) as client:
        for job_id, data in answers:
            undisturbed = (await client.get(f"/jobs/{job_id}/stream")).content
            assert without_comments(data) == without_comments(undisturbed), job_id
            assert data.endswith(b"data: [DONE]\n\n")
            result = await client.get(f"/jobs/{job_id}/result")
            assert without_comments(data) == result.content, job_id
            job = (await client.get(f"/jobs/{job_id}")).json()
            assert job["state"] == "completed"


async def stream(n: int, urls: list[str], dropping: DroppingTransport) -> tuple[str, bytes]:
    """The job of stream number `n`, and the bytes that its client got."""
    path, fields = body(n)
    client = httpx.AsyncClient(transport=AsyncResumingTransport(urls, PATIENT, dropping))
    async with client.stream("POST", f"http://flotilla{path}", json=fields, timeout=60) as response:
        assert response.status_code == 200, await response.aread()
        data = b"".join([part async for part in response.aiter_raw()])
    return response.headers["x-flotilla-job-id"], data


@pytest.fixture
def pair(stack: Stack) -> list[Process]:
    """Two gateways, with a worker."""
    gateways = [stack.gateway(), stack.gateway()]
    stack.worker(sim_step_ms=20, sim_step_us_per_seq=0)
    return gateways


def test_openais_client_streams_on_when_its_gateway_is_killed(pair: list[Process]) -> None:
    transport = ResumingTransport([gateway.url for gateway in pair])
    with OpenAI(
        base_url="http://flotilla/v1", api_key="k", http_client=httpx.Client(transport=transport)
    ) as client:
        with client.chat.completions.with_streaming_response.create(
            model=MODEL,
            messages=[{"role": "user", "content": "hello"}],
            stream=True,
            max_tokens=80,
            extra_body={"ignore_eos": True},
        ) as response:
            lines = response.iter_lines()
            got = [next(lines) for _ in range(20)]
            pair[0].kill()
            got += list(lines)
            job_id = response.headers["x-flotilla-job-id"]
        whole = http.get(f"{pair[1].url}/jobs/{job_id}/result").text
        assert [line for line in got if line] == [line for line in whole.splitlines() if line]


async def test_whole_answers_and_new_calls_survive_a_killed_gateway(pair: list[Process]) -> None:
    transport = AsyncResumingTransport([gateway.url for gateway in pair])
    async with AsyncOpenAI(
        base_url="http://flotilla/v1",
        api_key="k",
        http_client=httpx.AsyncClient(transport=transport),
    ) as client:

        async def call(n: int) -> tuple[int, str]:
            answer = await client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": str(n)}],
                max_tokens=60,
                extra_body={"ignore_eos": True},
            )
            assert answer.usage is not None
            return answer.usage.completion_tokens, answer.id

        calls = [asyncio.create_task(call(n)) for n in range(10)]

        async def jobs() -> list[Any]:
            found = await client.get("http://flotilla/jobs?limit=100", cast_to=httpx.Response)
            return list(found.json()["data"])

        async def all_run() -> bool:
            return [job["state"] for job in await jobs()] == ["in_progress"] * 10

        await eventually(all_run, "the calls run")
        pair[0].kill()
        answers = await asyncio.gather(*calls)
        assert [tokens for tokens, _ in answers] == [60] * 10
        assert len({answer_id for _, answer_id in answers}) == 10
        assert len(await jobs()) == 10, "a call that was sent again joined its job"
        assert (await call(99))[0] == 60


def test_a_closed_stream_is_cancelled_at_once(pair: list[Process]) -> None:
    transport = ResumingTransport([gateway.url for gateway in pair])
    path, fields = body(0)
    with httpx.Client(transport=transport) as client:
        fields["max_tokens"] = 4000
        with client.stream("POST", f"http://flotilla{path}", json=fields) as response:
            next(response.iter_raw())
        job = f"{pair[1].url}/jobs/{response.headers['x-flotilla-job-id']}"
        wait_for(lambda: http.get(job).json()["state"] == "cancelled", "cancelled")


def client_of(gateway: Process) -> OpenAI:
    return OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0, timeout=60)


def long_stream(client: OpenAI, **fields: Any) -> Any:
    return client.responses.create(
        model=MODEL,
        input="Tell me a story.",
        stream=True,
        max_output_tokens=400,
        extra_body={"ignore_eos": True},
        **fields,
    )


def normal(events: list[Any]) -> list[Any]:
    """Events without ids and times."""
    found = []
    for event in events:
        fields = event.to_dict()
        fields.pop("item_id", None)
        fields.get("item", {}).pop("id", None)
        if "response" in fields:
            fields["response"] = {
                name: fields["response"].get(name) for name in ("status", "usage", "model")
            }
        found.append(fields)
    return found


def item_ids(events: list[Any]) -> set[str]:
    ids = {event.item_id for event in events if hasattr(event, "item_id")}
    return ids | {event.item.id for event in events if hasattr(event, "item")}


def job_of(response_id: str) -> str:
    return "job_" + response_id.removeprefix("resp_")


def worker_of(gateway: Process, workers: list[Process], response_id: str) -> Process:
    """The worker that runs it."""
    worker_id = job(gateway, job_of(response_id))["attempts"][-1]["worker"]
    return next(worker for worker in workers if worker_id in worker.log.read_text())


def test_a_response_outlives_its_worker(stack: Stack) -> None:
    gateway = stack.gateway()
    workers = [stack.worker(**STEADY) for _ in range(2)]
    with client_of(gateway) as client:
        undisturbed = list(long_stream(client))
        stream = long_stream(client)
        seen = []
        for event in stream:
            seen.append(event)
            if len(seen) == 30:
                worker_of(gateway, workers, seen[0].response.id).kill()
        assert normal(seen) == normal(undisturbed)
        assert len(item_ids(seen)) == 1
        assert len({e.response.created_at for e in seen if hasattr(e, "response")}) == 1
        final = seen[-1].response
        assert outcomes(gateway, job_of(final.id)) == ["worker_lost", "completed"]
        assert {item.id for item in final.output} == item_ids(seen)
        assert client.responses.retrieve(final.id).output_text == final.output_text


def test_a_transport_resumes_a_background_response(stack: Stack) -> None:
    gateways = [stack.gateway(), stack.gateway()]
    stack.worker(**STEADY)
    transport = ResumingTransport([gateway.url for gateway in gateways])
    with OpenAI(
        base_url="http://flotilla/v1",
        api_key="any",
        max_retries=0,
        http_client=httpx.Client(transport=transport, timeout=60),
    ) as client:
        seen = []
        for event in long_stream(client, background=True):
            seen.append(event)
            if len(seen) == 30:
                gateways[0].kill()
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert seen[-1].type == "response.incomplete"


def test_a_background_response_outlives_its_gateway(stack: Stack) -> None:
    first, second = stack.gateway(), stack.gateway()
    stack.worker(**STEADY)
    with client_of(first) as client, client_of(second) as other:
        seen = []
        for event in long_stream(client, background=True):
            seen.append(event)
            if len(seen) == 30:
                first.kill()
                break
        response_id = seen[0].response.id
        after = seen[-1].sequence_number
        seen += list(other.responses.retrieve(response_id, stream=True, starting_after=after))
        assert [event.sequence_number for event in seen] == list(range(len(seen)))
        assert seen[-1].type == "response.incomplete"
        deltas = [e.delta for e in seen if e.type == "response.output_text.delta"]
        assert "".join(deltas) == other.responses.retrieve(response_id).output_text
        assert len(item_ids(seen)) == 1

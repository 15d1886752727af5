"""Large answers on a gateway: they are not parsed or serialised, and little is held at once."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import Callable
from typing import Any, cast

import httpx
import pytest
from redis import Redis

from shared.job.frames import DeltaEncoder
from shared.job.job import LeasedJob
from shared.job.job_log import make_journal, pack_segment
from shared.job.packing import pack
from shared.job.states import JobState
from shared.job.step_log import LogFlush
from shared.store.answers import log_parts
from shared.store.redis import keys
from shared.store.queue import Queue
from tests.harness.servers import RedisServer
from tests.store.conftest import answer, claim_one, emit, end_without_output, submit
from tests.redis.test_gateway_tasks import serving
from tests.redis.test_publisher import Worker, worker
from worker.core.result_pieces import store_pieces

__all__ = ["worker"]

MB = 1 << 20
SMALL = 1 << 16
"""What may be parsed at once."""
CHAT = {"object": "chat.completion", "choices": [{"message": {"content": "x" * (6 * MB)}}]}
RESPONSE = {"object": "response", "output": [{"type": "message", "text": "y" * (6 * MB)}]}


@pytest.fixture
def largest(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of what was parsed from JSON, or made JSON, in this process."""
    sizes = [0]

    def noting(function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(value: Any, *args: Any, **kwargs: Any) -> Any:
            made = function(value, *args, **kwargs)
            sizes.append(max(len(each) for each in (value, made) if isinstance(each, str | bytes)))
            return made

        return noted

    monkeypatch.setattr(json, "loads", noting(json.loads))
    monkeypatch.setattr(json, "dumps", noting(json.dumps))
    return sizes


async def finished(queue: Queue, worker: Worker, body: Any, endpoint: str) -> LeasedJob:
    """A job with this answer."""
    text = json.dumps(body, separators=(",", ":")).encode()
    options = b'{"flotilla":{"response":{}},"model":"m"}'
    await submit(queue, tenant="default", stream=False, endpoint=endpoint, gateway="", body=options)
    job = await claim_one(queue)
    result = answer(body=text, status=200, content_type="application/json", completion_tokens=0)
    assert await worker.finish(worker.start(job), result) == "ok"
    return job


async def read(client: httpx.AsyncClient, path: str) -> bytes:
    response = await client.get(path)
    assert response.status_code == 200, response.text[:300]
    if "content-length" in response.headers:
        assert int(response.headers["content-length"]) == len(response.content)
    return response.content


async def test_a_large_answer_is_passed_on_as_bytes(
    queue: Queue, redis_server: RedisServer, worker: Worker, largest: list[int]
) -> None:
    job = await finished(queue, worker, CHAT, "/v1/chat/completions")
    response = await finished(queue, worker, RESPONSE, "/v1/responses")
    async with serving(redis_server) as client:
        largest[:] = [0]
        whole = await read(client, f"/jobs/{job.id}/result")
        shown = await read(client, f"/jobs/{job.id}")
        waited = await read(client, f"/jobs/{job.id}?wait=5")
        events = await read(client, f"/jobs/{job.id}/events")
        streamed = await read(client, f"/jobs/{job.id}/stream")
        retrieved = await read(client, f"/v1/responses/resp_{response.id.removeprefix('job_')}")
        cancelled = await client.post(f"/jobs/{job.id}/cancel")
        for path in (f"/jobs/{job.id}/timeline", f"/jobs/{job.id}/why", "/jobs"):
            assert len(await read(client, path)) < SMALL
        assert max(largest) < SMALL
    assert json.loads(whole) == json.loads(streamed) == CHAT
    assert json.loads(shown)["result"] == CHAT
    assert waited == shown == cancelled.content
    assert json.loads(retrieved) == RESPONSE
    _, _, last = events.partition(b"event: completed\n")
    (data,) = [line for line in last.splitlines() if line.startswith(b"data: ")]
    assert json.loads(data.removeprefix(b"data: "))["result"] == CHAT


async def test_a_reader_of_a_large_answer_takes_little_memory(
    queue: Queue, redis_server: RedisServer, worker: Worker
) -> None:
    job = await finished(queue, worker, CHAT, "/v1/chat/completions")
    sent: list[int] = []

    async def send(message: Any) -> None:
        sent.append(len(message.get("body", b"")))

    async def receive() -> Any:
        await asyncio.Event().wait()  # the client stays

    async with serving(redis_server) as client:
        app = client._transport.app  # type: ignore[attr-defined]
        for path in (f"/jobs/{job.id}/result", f"/jobs/{job.id}"):
            scope = {"type": "http", "method": "GET", "path": path, "query_string": b""}
            scope |= {"headers": [], "http_version": "1.1", "scheme": "http"}
            tracemalloc.start()
            await app(scope, receive, send)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak < 3 * MB
    assert sum(sent) > 12 * MB


async def test_an_answer_that_lacks_a_piece_is_an_error(
    queue: Queue, store: Redis, redis_server: RedisServer, worker: Worker
) -> None:
    job = await finished(queue, worker, CHAT, "/v1/chat/completions")
    store.hdel(keys.job(0, job.id), "result:0")
    async with serving(redis_server) as client:
        for path in (f"/jobs/{job.id}/result", f"/jobs/{job.id}", f"/jobs/{job.id}/stream"):
            lost = await client.get(path)
            assert (lost.status_code, lost.json()["error"]["code"]) == (500, "stream_reset")


async def test_pieces_are_stored_for_the_holder_of_the_lease_only(
    queue: Queue, store: Redis, worker: Worker
) -> None:
    await submit(queue, stream=False)
    job = await claim_one(queue)
    buffer = worker.start(job)
    await queue.cancel(job.id, "tenant")
    assert await worker.finish(buffer, answer(body=b"x" * MB)) != "ok"
    found = await queue.get(job.id)
    assert found is not None
    assert found.state is JobState.CANCELLED
    assert not [name for name in store.hkeys(keys.job(0, job.id)) if b"result" in name]
    store.delete(keys.job(0, job.id))
    assert await worker.finish(worker.start(job), answer(body=b"x" * MB)) != "ok"
    assert not store.exists(keys.job(0, job.id))  # it would have no time to live


@pytest.mark.parametrize("end", ["cancelled", "released", "lost log"])
async def test_pieces_of_an_attempt_that_ends_otherwise_are_deleted(
    queue: Queue, store: Redis, worker: Worker, end: str
) -> None:
    await submit(queue, stream=False)
    job = await claim_one(queue)
    buffer = worker.start(job)
    await store_pieces(queue, buffer, b"x" * MB)
    key = keys.job(0, job.id)
    assert {b"result:%d" % number for number in range(4)} <= set(store.hkeys(key))
    if end == "cancelled":
        assert await queue.cancel(job.id, "tenant")
    elif end == "released":
        await queue.release([job], "stopped", blame=False)
    else:
        store.hset(key, "log_lost", "1")
        assert await worker.finish(buffer, answer(body=b"short")) == "failed"
    assert not [name for name in store.hkeys(key) if name.startswith(b"result:")]


async def logged(queue: Queue, steps: list[list[bytes]], segments_of: int) -> LeasedJob:
    """A streamed job that has ended, with a log of these steps of one token each."""
    await submit(queue, tenant="default", gateway="")
    job = await claim_one(queue)
    encoder = DeltaEncoder()
    journals = [make_journal([(0, 0, [1], "word " * 8)]) for _ in steps]
    entries = [
        pack(journal) + pack(encoder.encode(chunks))
        for journal, chunks in zip(journals, steps, strict=True)
    ]
    for first in range(0, len(entries), segments_of):
        part = entries[first : first + segments_of]
        segment = pack_segment(first + 1, part)
        await emit(queue, [], log_flushes=[LogFlush(job.id, segment)])
    done = answer(status=200, completion_tokens=len(steps), content_type="text/event-stream")
    await emit(queue, [end_without_output(job, len(steps) + 1, done)])
    return job


def chunks_of(n: int) -> list[list[bytes]]:
    return [[b'data: {"text":"%b %d"}\n\n' % (b"t" * 64, number)] for number in range(n)]


@pytest.fixture
def n_parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many entries each read of a log has parsed."""
    sizes: list[int] = []
    plain = Queue.read_log

    async def read_log(self: Queue, *args: Any, **kwargs: Any) -> Any:
        part = await plain(self, *args, **kwargs)
        sizes.append(len(part.entries))
        return part

    monkeypatch.setattr(Queue, "read_log", read_log)
    return sizes


async def test_a_long_log_is_read_in_parts(
    queue: Queue, redis_server: RedisServer, n_parsed: list[int]
) -> None:
    steps = chunks_of(4000)
    job = await logged(queue, steps, 32)
    n_parsed.clear()
    async with serving(redis_server) as client:
        shown = json.loads(await read(client, f"/jobs/{job.id}"))
        assert shown["text"] == "word " * 8 * 4000
        assert await read(client, f"/jobs/{job.id}/result") == b"".join(
            chunk for step in steps for chunk in step
        )
    assert max(n_parsed) < 500
    assert sum(n_parsed) == 2 * 4001
    found = await queue.get(job.id)
    assert found is not None
    assert [entry.seq async for part in log_parts(queue, found) for entry in part] == list(
        range(1, 4002)
    )


async def test_no_text_is_shown_of_a_log_that_is_too_long(
    queue: Queue, redis_server: RedisServer, n_parsed: list[int]
) -> None:
    job = await logged(queue, chunks_of(4000), 2000)  # written together, so not divided
    n_parsed.clear()
    async with serving(redis_server) as client:
        shown = json.loads(await read(client, f"/jobs/{job.id}"))
    assert (shown["text"], shown["choices"]) == (None, [])
    assert "/jobs/{id}/stream" in shown["text_omitted"]
    assert max(n_parsed) == 0


@pytest.mark.parametrize("lost", [0, 40, 124])
async def test_a_long_log_that_lacks_a_part_is_an_error(
    queue: Queue, store: Redis, redis_server: RedisServer, lost: int
) -> None:
    job = await logged(queue, chunks_of(4000), 32)
    segments = store.lrange(keys.log(0, job.id), 0, -1)
    assert store.lrem(keys.log(0, job.id), 1, cast(str, segments[lost])) == 1
    async with serving(redis_server) as client:
        shown = json.loads(await read(client, f"/jobs/{job.id}"))
        assert (shown["text"], shown["error"]["code"]) == (None, "stream_reset")
        if lost:
            with pytest.raises(AssertionError):  # of httpx: the response has no end
                await client.get(f"/jobs/{job.id}/result")
        else:
            assert (await client.get(f"/jobs/{job.id}/result")).status_code == 500

"""Large answers on a gateway: they are not parsed or serialised, and little is held at once."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from redis import Redis

from shared.job.job import NewJob
from shared.job.log import DeltaEncoder, Entry, Position, make_journal, pack_entry
from shared.job.result import INLINE_RESULT_BYTES, PIECE_BYTES, n_pieces
from shared.job.states import JobState
from shared.store import keys
from shared.store.answers import log_parts
from shared.store.queue import HeldJob, Queue, Step
from tests.harness.servers import RedisServer
from tests.store.conftest import (
    TENANT,
    WORKER,
    claim_one,
    finish,
    lease,
    lose_worker,
    make_answer,
    submit,
)  # fmt: skip
from tests.store.test_gateway_tasks import serving

MB = 1 << 20
SMALL = 1 << 16
"""What may be parsed at once."""
CHAT = {"object": "chat.completion", "choices": [{"message": {"content": "x" * (6 * MB)}}]}
RESPONSE = {"object": "response", "output": [{"type": "message", "text": "y" * (6 * MB)}]}


@pytest.fixture
def kind(own_kind: RedisServer) -> RedisServer:
    """One Redis: gateways do the same on all kinds."""
    return own_kind


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


async def store_pieces(queue: Queue, job: HeldJob, body: bytes) -> bool:
    """Store a long body before the job's end; False if it is not the worker's any more."""
    pieces = [body[at : at + PIECE_BYTES] for at in range(0, len(body), PIECE_BYTES)]
    stored = [await queue.store_piece(job, n, piece) for n, piece in enumerate(pieces)]
    return all(stored)


async def finished(queue: Queue, body: Any, endpoint: str) -> NewJob:
    """A job with this answer."""
    text = json.dumps(body, separators=(",", ":")).encode()
    options = b'{"flotilla":{"response":{}},"model":"m"}'
    job = await submit(
        queue, tenant="default", stream=False, endpoint=endpoint, gateway="", body=options
    )
    held = await claim_one(queue)
    assert len(text) > INLINE_RESULT_BYTES
    assert await store_pieces(queue, held, text)
    answer = make_answer(body=text, content_type="application/json", completion_tokens=0)
    assert await finish(queue, held, answer) == "ok"
    return job


async def read(client: httpx.AsyncClient, path: str) -> bytes:
    response = await client.get(path)
    assert response.status_code == 200, response.text[:300]
    if "content-length" in response.headers:
        assert int(response.headers["content-length"]) == len(response.content)
    return response.content


async def test_a_large_answer_is_passed_on_as_bytes(
    queue: Queue, kind: RedisServer, largest: list[int]
) -> None:
    job = await finished(queue, CHAT, "/v1/chat/completions")
    response = await finished(queue, RESPONSE, "/v1/responses")
    async with serving(kind) as client:
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
    queue: Queue, kind: RedisServer
) -> None:
    job = await finished(queue, CHAT, "/v1/chat/completions")
    sent: list[int] = []

    async def send(message: Any) -> None:
        sent.append(len(message.get("body", b"")))

    async def receive() -> Any:
        await asyncio.Event().wait()  # the client stays

    async with serving(kind) as client:
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
    queue: Queue, server: Redis, kind: RedisServer
) -> None:
    job = await finished(queue, CHAT, "/v1/chat/completions")
    server.hdel(keys.job(0, job.id), "result:0")
    async with serving(kind) as client:
        for path in (f"/jobs/{job.id}/result", f"/jobs/{job.id}", f"/jobs/{job.id}/stream"):
            lost = await client.get(path)
            assert (lost.status_code, lost.json()["error"]["code"]) == (500, "stream_reset")


async def test_pieces_are_stored_for_the_holder_only(queue: Queue, server: Redis) -> None:
    held = await lease(queue, stream=False)
    assert await queue.cancel(TENANT, held.id) == [JobState.CANCELLED]
    assert not await store_pieces(queue, held, b"x" * MB)
    assert await finish(queue, held, make_answer(body=b"x" * MB)) == "cancelled"
    assert not [name for name in server.hkeys(keys.job(0, held.id)) if b"result" in name]
    server.delete(keys.job(0, held.id))
    assert not await store_pieces(queue, held, b"x" * MB)
    assert not server.exists(keys.job(0, held.id))  # it would have no time to live


@pytest.mark.parametrize("end", ["cancelled", "given back", "lost", "lost log"])
async def test_pieces_of_an_attempt_that_ends_otherwise_are_deleted(
    queue: Queue, server: Redis, end: str
) -> None:
    held = await lease(queue, stream=False)
    assert await store_pieces(queue, held, b"x" * MB)
    key = keys.job(0, held.id)
    names = {b"result:%d" % number for number in range(n_pieces(MB))}
    assert names <= set(server.hkeys(key))
    if end == "cancelled":
        assert await queue.cancel(TENANT, held.id)
    elif end == "given back":
        assert await queue.give_back([held], "handed_over", "stopped")
    elif end == "lost":
        await lose_worker(queue, server)
    else:
        server.delete(keys.log(0, held.id))
        assert await finish(queue, held, make_answer(body=b"short")) == "failed"
    assert not [name for name in server.hkeys(key) if name.startswith(b"result:")]


async def logged(queue: Queue, steps: list[list[bytes]]) -> NewJob:
    """A streamed job that has ended, with a log of these steps of one token each."""
    job = await submit(queue, tenant="default", gateway="")
    held = await claim_one(queue)
    encoder, entries = DeltaEncoder(), list[Any]()
    for number, chunks in enumerate(steps, 2):
        entry = pack_entry(make_journal([(0, 0, [1], "word " * 8)]), encoder.encode(chunks))
        entries += [held.id, str(Position(held.generation, number)), entry]
    for at in range(0, len(entries), 1500):
        step = Step(entries=entries[at : at + 1500])
        assert not queue.parse_emit(await queue.emit(0, WORKER, b"", step)).refused
    answer = make_answer(completion_tokens=len(steps), content_type="text/event-stream")
    assert await finish(queue, held, answer) == "ok"
    return job


def chunks_of(n: int) -> list[list[bytes]]:
    return [[b'data: {"text":"%b %d"}\n\n' % (b"t" * 64, number)] for number in range(n)]


@pytest.fixture
def n_parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many entries each read of a log has parsed."""
    sizes: list[int] = []
    plain = Queue.read

    async def read(self: Queue, job_id: str, after: Position, most: int) -> list[Entry]:
        entries = await plain(self, job_id, after, most)
        sizes.append(len(entries))
        return entries

    monkeypatch.setattr(Queue, "read", read)
    return sizes


async def test_a_long_log_is_read_in_pages(
    queue: Queue, kind: RedisServer, n_parsed: list[int]
) -> None:
    steps = chunks_of(3000)
    job = await logged(queue, steps)
    async with serving(kind) as client:
        shown = json.loads(await read(client, f"/jobs/{job.id}"))
        assert shown["text"] == "word " * 8 * 3000
        assert await read(client, f"/jobs/{job.id}/result") == b"".join(
            chunk for step in steps for chunk in step
        )
    assert max(n_parsed) <= 500
    (found,) = await queue.get(job.id)
    assert found is not None
    parts = [part async for part in log_parts(queue, found)]
    assert [entry.position.number for part in parts for entry in part] == list(range(1, 3003))


async def test_no_text_is_shown_of_a_log_that_is_too_long(
    queue: Queue, kind: RedisServer, n_parsed: list[int]
) -> None:
    job = await logged(queue, [[b"x" * 1000] for _ in range(4000)])
    n_parsed.clear()
    async with serving(kind) as client:
        shown = json.loads(await read(client, f"/jobs/{job.id}"))
    assert (shown["text"], shown["choices"]) == (None, [])
    assert "/jobs/{id}/stream" in shown["text_omitted"]
    assert sum(n_parsed) < 4000


@pytest.mark.parametrize("lost", [2, 1300, 3001])
async def test_a_long_log_that_lacks_an_entry_is_an_error(
    queue: Queue, server: Redis, kind: RedisServer, lost: int
) -> None:
    job = await logged(queue, chunks_of(3000))
    ((entry_id, _),) = server.xrange(keys.log(0, job.id))[lost - 1 : lost]  # type: ignore[index]
    assert server.xdel(keys.log(0, job.id), entry_id) == 1
    async with serving(kind) as client:
        shown = json.loads(await read(client, f"/jobs/{job.id}"))
        assert (shown["text"], shown["error"]["code"]) == (None, "stream_reset")
        if lost > 500:
            with pytest.raises(AssertionError):  # of httpx: the response has no end
                await client.get(f"/jobs/{job.id}/result")
        else:
            assert (await client.get(f"/jobs/{job.id}/result")).status_code == 500

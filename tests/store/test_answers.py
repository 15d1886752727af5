"""Large answers on a gateway: they are not parsed or serialised, and little is held at once."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from gateway.app import create_app
from shared.job.job import NewJob
from shared.job.log import DeltaEncoder, Entry, Position, make_journal, pack_entry
from shared.job.result import INLINE_RESULT_BYTES, PIECE_BYTES
from shared.store import keys
from shared.store.answers import log_parts
from shared.store.queue import Queue, Step
from tests.harness.servers import RedisServer
from tests.harness.settings import Settings
from tests.store.conftest import Case

MB = 1 << 20
SMALL = 1 << 16
"""What may be parsed at once."""
CHAT = {"object": "chat.completion", "choices": [{"message": {"content": "x" * (6 * MB)}}]}
RESPONSE = {"object": "response", "output": [{"type": "message", "text": "y" * (6 * MB)}]}


@contextlib.asynccontextmanager
async def serving(server: RedisServer) -> AsyncIterator[httpx.AsyncClient]:
    """A gateway in this process."""
    app = create_app(Settings(redis_url=server.url, access_log=False))
    transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
    async with (
        app.fastapi.router.lifespan_context(app.fastapi),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        yield client


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


async def finished(case: Case, answer: Any, endpoint: str) -> str:
    """A job with this answer."""
    text = json.dumps(answer, separators=(",", ":")).encode()
    assert len(text) > INLINE_RESULT_BYTES
    options = b'{"flotilla":{"response":{}},"model":"m"}'
    worker, held = await case.begin(
        tenant="default", stream=False, endpoint=endpoint, gateway="", body=options
    )
    for number, at in enumerate(range(0, len(text), PIECE_BYTES)):
        assert await case.queue.store_piece(held, number, text[at : at + PIECE_BYTES])
    await worker.end(held, body=text, content_type="application/json", completion_tokens=0)
    return held.id


async def read(client: httpx.AsyncClient, path: str) -> bytes:
    response = await client.get(path)
    assert response.status_code == 200, response.text[:300]
    if "content-length" in response.headers:
        assert int(response.headers["content-length"]) == len(response.content)
    return response.content


async def test_a_large_answer_is_passed_on_as_bytes(
    alone: Case, one: RedisServer, largest: list[int]
) -> None:
    job = await finished(alone, CHAT, "/v1/chat/completions")
    response = await finished(alone, RESPONSE, "/v1/responses")
    async with serving(one) as client:
        largest[:] = [0]
        whole = await read(client, f"/jobs/{job}/result")
        shown = await read(client, f"/jobs/{job}")
        waited = await read(client, f"/jobs/{job}?wait=5")
        events = await read(client, f"/jobs/{job}/events")
        streamed = await read(client, f"/jobs/{job}/stream")
        retrieved = await read(client, f"/v1/responses/resp_{response.removeprefix('job_')}")
        cancelled = await client.post(f"/jobs/{job}/cancel")
        for path in (f"/jobs/{job}/timeline", f"/jobs/{job}/why", "/jobs"):
            assert len(await read(client, path)) < SMALL
        assert max(largest) < SMALL
        alone.server.hdel(keys.job(0, job), "result:0")
        for path in (f"/jobs/{job}/result", f"/jobs/{job}", f"/jobs/{job}/stream"):
            lost = await client.get(path)
            assert (lost.status_code, lost.json()["error"]["code"]) == (500, "stream_reset")
    assert json.loads(whole) == json.loads(streamed) == CHAT
    assert json.loads(shown)["result"] == CHAT
    assert waited == shown == cancelled.content
    assert json.loads(retrieved) == RESPONSE
    _, _, last = events.partition(b"event: completed\n")
    (data,) = [line for line in last.splitlines() if line.startswith(b"data: ")]
    assert json.loads(data.removeprefix(b"data: "))["result"] == CHAT


async def logged(case: Case, steps: list[bytes]) -> NewJob:
    """A streamed job that has ended, with a log of these steps of one token each."""
    job = await case.submit(tenant="default", gateway="")
    worker = case.worker()
    held = await worker.claim_one()
    encoder, entries = DeltaEncoder(), list[Any]()
    for number, chunk in enumerate(steps, 2):
        entry = pack_entry(make_journal([(0, 0, [1], "word " * 8)]), encoder.encode([chunk]))
        entries += [held.id, str(Position(held.generation, number)), entry]
    for at in range(0, len(entries), 1500):
        assert not (await worker.send(Step(entries=entries[at : at + 1500]))).refused
    worker.numbers[held.id] = len(steps) + 1
    await worker.end(held, completion_tokens=len(steps))
    return job


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
    alone: Case, one: RedisServer, n_parsed: list[int]
) -> None:
    steps = [b'data: {"text":"%b %d"}\n\n' % (b"t" * 64, number) for number in range(3000)]
    job = await logged(alone, steps)
    async with serving(one) as client:
        shown = json.loads(await read(client, f"/jobs/{job.id}"))
        assert shown["text"] == "word " * 8 * 3000
        assert await read(client, f"/jobs/{job.id}/result") == b"".join(steps)
        assert max(n_parsed) <= 500
        parts = [part async for part in log_parts(alone.queue, await alone.shown(job))]
        numbers = [entry.position.number for part in parts for entry in part]
        assert numbers == list(range(1, 3003))
        long = await logged(alone, [b"x" * 1000] * 4000)
        n_parsed.clear()
        shown = json.loads(await read(client, f"/jobs/{long.id}"))
        assert (shown["text"], shown["choices"]) == (None, [])
        assert "/jobs/{id}/stream" in shown["text_omitted"]
        assert sum(n_parsed) < 4000
        for lost, error in ((1300, pytest.raises(AssertionError)), (1, contextlib.nullcontext())):
            ((entry_id, _),) = alone.server.xrange(log := keys.log(0, job.id))[lost : lost + 1]
            alone.server.xdel(log, entry_id)
            shown = json.loads(await read(client, f"/jobs/{job.id}"))
            assert (shown["text"], shown["error"]["code"]) == (None, "stream_reset")
            with error:  # of httpx: the response has no end
                assert (await client.get(f"/jobs/{job.id}/result")).status_code == 500

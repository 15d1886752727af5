"""Conversations and stored responses: one response at a time is made of each conversation, and none
loses its input."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from typing import Any

import pytest

from gateway.apis.responses import conversation_store, response_jobs
from gateway.apis.responses.conversation_store import Conversations
from gateway.apis.responses.response_jobs import ResponseJobs
from gateway.apis.responses.response_request import response_request
from gateway.apis.responses.stored_response import stored_response
from gateway.core.admission import CheckedRequest
from gateway.core.job_factory import JobFactory
from gateway.core.prompt_limits import PromptSize
from shared.api.endpoints import ENDPOINTS
from shared.fleet.registry import ModelInfo
from shared.job.errors import (
    BadRequest,
    ConversationLocked,
    NotFound,
    QuotaExceeded,
    StreamReset,
)
from shared.job.job import IdempotencyKey, NewJob
from shared.job.responses import response_id
from shared.store import keys
from shared.store.conversations import Conversation
from shared.store.health import Health
from shared.store.queue import HeldJob, JoinedJob, Room
from tests.harness.settings import Settings
from tests.store.conftest import GATEWAY, POOL, TENANT, Case
from tests.store.ledger import check

ENDPOINT = ENDPOINTS["/v1/responses"]


class Side:
    """What a gateway has for responses."""

    def __init__(self, case: Case, max_body_bytes: int = 1 << 20) -> None:
        self.case, self.queue = case, case.queue
        settings = Settings(max_body_bytes=max_body_bytes)
        self.factory = JobFactory(settings, settings.described, GATEWAY, lambda shard: True)
        self.health = Health(self.queue, 0.9)
        self.conversations = Conversations(self.queue, self.factory.new_shard, settings)
        self.responses = ResponseJobs(self.queue, self.conversations, settings)

    async def new(self, *texts: str) -> Conversation:
        """A conversation with these messages."""
        items = [{"type": "message", "role": "user", "content": text} for text in texts]
        return await self.conversations.create(TENANT, {}, items)

    async def now(self, conversation: Conversation) -> Conversation:
        return await self.conversations.get(TENANT, conversation.id)

    async def append(self, conversation: Conversation, *items: Any) -> None:
        made = [{"role": "user", "content": i} if isinstance(i, str) else i for i in items]
        await self.conversations.append(conversation, made)

    async def prepared(self, key: str = "", **fields: Any) -> NewJob | JoinedJob:
        """The job of a request for a response, which is not submitted yet."""
        body = {"model": "m", "input": "x", "stream": False} | fields
        request = response_request(body)
        checked = CheckedRequest("m", False, "default", PromptSize(0, 0), (), request)
        raw = json.dumps(body).encode()
        in_it = request.options.conversation
        idempotency = IdempotencyKey.of(TENANT, ENDPOINT.path, key, raw, in_it) if key else None
        model = ModelInfo("m", POOL, {})
        job = self.factory.new(ENDPOINT, TENANT, model, checked, b"", "keep", idempotency)
        return await self.responses.complete(job, request)

    async def submit(self, job: NewJob | JoinedJob) -> str:
        """Returns the id of the job, or of the one that it joins. Raises what refuses it."""
        if isinstance(job, JoinedJob):
            return job.id
        (reply,) = await self.case.submit_all([job])
        return reply.id if isinstance(reply, JoinedJob) else job.id

    async def create(self, key: str = "", **fields: Any) -> str:
        return await self.submit(await self.prepared(key, **fields))

    async def claim(self) -> list[HeldJob]:
        return await self.case.worker(heard=False).claim(known=10_000)

    async def end(self, job: HeldJob, text: str) -> None:
        """Complete a response with one message."""
        part = {"type": "output_text", "text": text, "annotations": []}
        message = {"id": f"msg_{text}", "type": "message", "role": "assistant", "content": [part]}
        response = {"object": "response", "output": [message], "status": "completed"}
        worker = self.case.worker(heard=False)
        worker.numbers[job.id] = job.number
        body, content_type = json.dumps(response).encode(), "application/json"
        assert not (await worker.end(job, body=body, content_type=content_type)).refused

    async def answered(self, text: str, **fields: Any) -> str:
        """A response that is complete."""
        job_id = await self.create(**fields)
        (job,) = await self.claim()
        await self.end(job, text)
        return job_id

    async def items(self, conversation: Conversation) -> list[dict[str, Any]]:
        page = await self.conversations.items(
            await self.now(conversation), after="", limit=100, descending=False, hold=at_once
        )
        found: list[dict[str, Any]] = json.loads(page)["data"]
        return found

    async def texts(self, conversation: Conversation) -> list[str]:
        return [item["content"][0]["text"] for item in await self.items(conversation)]

    async def input_texts(self, job_id: str) -> list[str]:
        """What a response was made from."""
        stored = await stored_response(self.queue, TENANT, response_id(job_id))
        page = await self.responses.input_page(
            stored, after="", limit=100, descending=False, hold=at_once
        )
        return [item["content"][0]["text"] for item in json.loads(page)["data"]]


async def at_once(n_bytes: int) -> None:
    """There is room."""


@pytest.fixture
def side(alone: Case, monkeypatch: pytest.MonkeyPatch) -> Side:
    for module in (conversation_store, response_jobs):
        monkeypatch.setattr(module, "MAX_MESSAGES", 100)
    return Side(alone)


# --- one at a time ---


@pytest.mark.seeds(6)
async def test_requests_in_any_order(side: Side, seed: int) -> None:
    """Several gateways' requests about one conversation, each step at any time. At every time the
    conversation is what its completed responses have added, in order, each once."""
    random_of = random.Random(seed)
    conversation = await side.new("start")
    expected = ["start"]
    prepared: list[NewJob] = []
    running: dict[str, HeldJob] = {}
    inputs: dict[str, str] = {}
    for step in range(40):
        act = random_of.choice(["prepare", "prepare", "submit", "submit", "claim", "end", "append"])
        with contextlib.suppress(ConversationLocked, StreamReset):
            if act == "prepare":
                job = await side.prepared(conversation=conversation.id, input=f"in{step}")
                assert isinstance(job, NewJob)
                read = [item["content"] for item in json.loads(job.body)["input"]][:-1]
                assert [content[0]["text"] for content in read] == expected
                inputs[job.id] = f"in{step}"
                prepared.append(job)
            elif act == "submit" and prepared:
                await side.submit(random_of.choice(prepared))
            elif act == "claim":
                running |= {job.id: job for job in await side.claim()}
            elif act == "end" and running:
                job_id, held = running.popitem()
                if random_of.random() < 0.3:
                    await side.queue.cancel(TENANT, job_id)
                else:
                    await side.end(held, f"out{step}")
                    expected += [inputs[job_id], f"out{step}"]
            elif act == "append":
                now = await side.now(conversation)
                await side.append(now._replace(job=random_of.choice(["", now.job])), f"a{step}")
                expected.append(f"a{step}")
        assert len(running) <= 1
        check(side.case.server)
        assert await side.texts(conversation) == expected


async def test_whoever_has_read_a_conversation_before_its_turn_is_refused(side: Side) -> None:
    conversation = await side.new("zero")
    jobs = [await side.prepared(conversation=conversation.id) for _ in range(5)]
    results = await asyncio.gather(*map(side.submit, jobs), return_exceptions=True)
    (begun,) = [each for each in results if isinstance(each, str)]
    assert sum(isinstance(each, ConversationLocked) for each in results) == 4
    (job,) = [job for job in jobs if job.id == begun]
    assert await side.submit(job) == begun  # as a call whose reply was lost
    assert len(await side.claim()) == 1
    now, item_id = await side.now(conversation), (await side.items(conversation))[0]["id"]
    for known in (now, now._replace(job="")):  # also by the script
        with pytest.raises(ConversationLocked):
            await side.append(known, "x")
        with pytest.raises(ConversationLocked):
            await side.conversations.remove(known, item_id)


@pytest.mark.parametrize("change", ["append", "remove", "delete"])
async def test_a_change_between_read_and_submit_is_noticed(side: Side, change: str) -> None:
    conversation = await side.new("zero")
    job, now = await side.prepared(conversation=conversation.id), await side.now(conversation)
    if change == "append":
        await side.append(now, "more")
    elif change == "remove":
        await side.conversations.remove(now, (await side.items(conversation))[0]["id"])
    else:
        await side.conversations.delete(now)
    with pytest.raises(NotFound if change == "delete" else ConversationLocked):
        await side.submit(job)
    assert await side.claim() == []


@pytest.mark.parametrize("how", ["cancelled", "failed", "deleted", "lost"])
async def test_a_response_without_an_answer_adds_nothing(side: Side, how: str) -> None:
    conversation = await side.new("zero")
    job_id = await side.create(conversation=conversation.id)
    if how == "cancelled":
        await side.queue.cancel(TENANT, job_id)
    elif how == "deleted":
        side.case.server.delete(keys.job(0, job_id))
    else:
        (job,) = await side.claim()
        worker = side.case.worker(heard=False)
        worker.numbers[job_id] = job.number
        code = "engine_error" if how == "failed" else ""
        await worker.end(job, error_code=code, body=b"" if how == "lost" else b"{}")
    assert await side.texts(conversation) == ["zero"]
    assert await side.create(conversation=conversation.id)


async def test_an_item_is_stored_once_and_limits_are_in_bytes(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = await side.new("zero")
    (item,) = await side.items(conversation)
    now = await side.now(conversation)
    with pytest.raises(BadRequest, match="already"):
        await side.append(now, item | {"content": []})
    await side.append(now, item)  # as a call whose reply was lost
    await side.answered("one!", conversation=conversation.id, input=[item])
    assert await side.texts(conversation) == ["zero", "one!"]
    monkeypatch.setattr(conversation_store, "MAX_MESSAGES", 5)
    small = Side(side.case, 2000)
    other, globes = await small.new(), "\N{EARTH GLOBE EUROPE-AFRICA}" * 300  # 4 bytes each
    await small.append(await small.now(other), globes)
    with pytest.raises(BadRequest, match="at most 2000 bytes"):
        await small.append(await small.now(other), globes)
    with pytest.raises(BadRequest, match="at most 5 items"):
        await small.append(await small.now(other), *"abcde")


# --- inputs ---


@pytest.mark.seeds(4)
async def test_no_response_loses_its_input(side: Side, seed: int) -> None:
    """Responses continue others and are deleted, in any order. Of a chain the last two keep what is
    before: a chat of 25 turns about a picture of 1 MB once kept 27 MB."""
    random_of, picture = random.Random(seed), "p" * 5_000
    first = await side.answered("out", input=picture)
    inputs, outputs = {first: [picture]}, {first: "out"}
    for step in range(40):
        some = random_of.choice([*inputs, *list(inputs)[-2:]])
        if random_of.random() < 0.3 and len(inputs) > 1:
            stored = await stored_response(side.queue, TENANT, response_id(some))
            await side.responses.delete(stored)
            del inputs[some]
        else:
            new = await side.answered(
                f"out{step}", previous_response_id=response_id(some), input=f"in{step}"
            )
            inputs[new], outputs[new] = [*inputs[some], outputs[some], f"in{step}"], f"out{step}"
        for each, texts in inputs.items():
            assert await side.input_texts(each) == texts


async def test_a_response_can_be_deleted_although_its_input_is_lost(side: Side) -> None:
    made = [await side.answered("out", input="p" * 5_000)]
    for _ in range(3):
        previous = response_id(made[-1])
        made.append(await side.answered("out", previous_response_id=previous, input="x"))
    side.case.server.delete(keys.job(0, made[2]))
    with pytest.raises(StreamReset):
        await side.input_texts(made[1])
    stored = await stored_response(side.queue, TENANT, response_id(made[1]))
    await side.responses.delete(stored)
    with pytest.raises(NotFound):
        await stored_response(side.queue, TENANT, response_id(made[1]))
    with pytest.raises(StreamReset):
        await side.input_texts(made[0])


async def test_pictures_are_kept_once(side: Side) -> None:
    """In a conversation, and in a chain of responses; 25 turns once kept a picture 25 times."""
    picture = "p" * 100_000
    conversation = await side.new(picture)
    for turn in range(10):
        await side.answered(f"out{turn}", conversation=conversation.id, input=f"in{turn}")
    await side.texts(conversation)
    chain = [await side.answered("a", input=picture)]
    for turn in range(10):
        previous = response_id(chain[-1])
        chain.append(await side.answered(f"b{turn}", previous_response_id=previous, input="x"))
    names = side.case.server.keys(keys.job(0, "*"))
    bodies = {name: side.case.server.hstrlen(name, "body") for name in names}
    of_chain = sum(bodies.pop(keys.job(0, each).encode()) for each in chain)
    assert of_chain < 250_000
    assert len(bodies) == 10
    assert sum(bodies.values()) < 10_000


# --- quotas ---

EXPIRING = keys.base(0) + "expiring"


async def sweep(side: Side, *, gone: bool = True) -> None:
    """As if all that expires was due; `gone`: and had expired."""
    for member in side.case.server.zrange(EXPIRING, 0, -1):
        if gone:
            side.case.server.delete(keys.base(0) + member.split()[0].decode())
        side.case.server.zadd(EXPIRING, {member: 1})
    await side.queue.sweep(0, 1000)


async def test_conversations_are_limited_and_given_back(side: Side) -> None:
    side.queue.rooms, server = [Room(quota=55_000)], side.case.server
    made = [await side.new("x" * 1000) for _ in range(3)]
    assert 3 * 1000 < check(server) < 3 * 5000
    await side.conversations.delete(made[0])
    assert check(server) < 2 * 5000
    more = await side.new("y" * 30_000)
    with pytest.raises(QuotaExceeded, match="bytes"):
        await side.append(await side.now(more), "z" * 9_000)
    await side.conversations.remove(await side.now(more), (await side.items(more))[0]["id"])
    assert check(server) < 3 * 5000
    await sweep(side, gone=False)  # what was used since stays counted
    assert check(server) > 2000
    due = dict(server.zrange(EXPIRING, 0, -1, withscores=True))
    (due_us,) = (at for name, at in due.items() if f"conversation:{more.id}".encode() in name)
    ttl_ms = side.case.server.pttl(keys.of("conversation", 0, more.id))
    now_s, now_us = side.case.server.time()
    assert abs(due_us / 1e6 - (now_s + now_us / 1e6 + ttl_ms / 1000)) < 60
    await sweep(side)
    assert check(server) == 0
    assert not side.case.server.exists(keys.of("conversations", 0, TENANT))

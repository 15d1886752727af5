"""Conversations on a real Redis: one item is read and written by itself, and one response at a time
is made of each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

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
    FlotillaError,
    IdempotencyKeyReused,
    NotFound,
    StreamReset,
)
from shared.job.idempotency import IdempotencyKey
from shared.job.job import NewJob, shard_in
from shared.job.replies import JoinedJob
from shared.job.responses import response_id, shard_of_conversation
from shared.job.states import JobEvent
from shared.store import keys
from shared.store.conversations import Conversation
from shared.store.health import Health
from shared.store.queue import HeldJob, Queue
from tests.harness.settings import Settings
from tests.store.conftest import POOL, TENANT, claim, finish, make_answer, open_queue

ENDPOINT = ENDPOINTS["/v1/responses"]


async def at_once(n_bytes: int) -> None:
    """There is room."""


SETTINGS = Settings(max_body_bytes=8 << 20)
MANY_OBJECTS = "[" + ",".join(["[]"] * 190_000) + "]"


def most_items(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    for module in (conversation_store, response_jobs):
        monkeypatch.setattr(module, "MAX_MESSAGES", number)


@pytest.fixture(autouse=True)
def hundred_items(monkeypatch: pytest.MonkeyPatch) -> None:
    most_items(monkeypatch, 100)


class Side:
    """What a gateway has for responses."""

    def __init__(self, queue: Queue, settings: Settings = SETTINGS) -> None:
        self.queue = queue
        self.factory = JobFactory(settings, settings.described, "gw-1", lambda shard: True)
        self.health = Health(queue.servers, 0.9)
        self.conversations = Conversations(queue, self.factory.new_shard, settings, self.health)
        self.responses = ResponseJobs(queue, self.conversations, settings)

    async def new(self, *texts: str) -> Conversation:
        """A conversation with these messages."""
        items = [{"type": "message", "role": "user", "content": text} for text in texts]
        return await self.conversations.create(TENANT, {}, items)

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

    async def create(self, key: str = "", **fields: Any) -> str:
        """Submit a request for a response; returns the job's id. Raises what refuses it."""
        job = await self.prepared(key, **fields)
        return job.id if isinstance(job, JoinedJob) else await self.submit(job)

    async def submit(self, job: NewJob) -> str:
        """Returns the id of the job, or of the one that it joins."""
        (reply,) = self.queue.parse_submit([job], await self.queue.submit(job.shard, [job], 1000))
        if isinstance(reply, FlotillaError):
            raise reply
        return reply.id if isinstance(reply, JoinedJob) else job.id

    async def items(self, conversation: Conversation, **query: Any) -> dict[str, Any]:
        """A page."""
        options: dict[str, Any] = {"after": "", "limit": 100, "descending": False} | query
        now = await self.conversations.get(TENANT, conversation.id)
        page: dict[str, Any] = json.loads(
            await self.conversations.items(now, hold=at_once, **options)
        )
        return page

    async def input_texts(self, job_id: str) -> list[str]:
        """What a response was made from."""
        stored = await stored_response(self.queue, TENANT, response_id(job_id))
        page = await self.responses.input_page(
            stored, after="", limit=100, descending=False, hold=at_once
        )
        return [item["content"][0]["text"] for item in json.loads(page)["data"]]

    async def texts(self, conversation: Conversation) -> list[str]:
        return [item["content"][0]["text"] for item in (await self.items(conversation))["data"]]


@pytest.fixture
def side(queue: Queue) -> Side:
    return Side(queue)


def output(text: str) -> bytes:
    """The answer of a response with one message."""
    part = {"type": "output_text", "text": text, "annotations": []}
    message = {"id": f"msg_{text}", "type": "message", "role": "assistant", "content": [part]}
    response = {"object": "response", "output": [message], "status": "completed"}
    return json.dumps(response).encode()


async def end(queue: Queue, job: HeldJob, text: str, **changes: Any) -> None:
    done = make_answer(body=output(text), content_type="application/json", **changes)
    assert await finish(queue, job, done) == "ok"


async def answered(side: Side, text: str, **fields: Any) -> str:
    """A response that is complete."""
    job_id = await side.create(**fields)
    (job,) = await claim(side.queue, shard=shard_in(job_id))
    await end(side.queue, job, text)
    return job_id


@contextlib.contextmanager
def parsed_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many bytes json reads or makes in this thread, by call."""
    sizes: list[int] = []
    loads, dumps = json.loads, json.dumps

    def counted_loads(text: Any, *args: Any, **options: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            sizes.append(len(text))
        return loads(text, *args, **options)

    def counted_dumps(*args: Any, **options: Any) -> str:
        text = dumps(*args, **options)
        if threading.current_thread() is threading.main_thread():
            sizes.append(len(text))
        return text

    with monkeypatch.context() as patch:
        patch.setattr(json, "loads", counted_loads)
        patch.setattr(json, "dumps", counted_dumps)
        yield sizes


async def test_a_page_reads_a_page(
    side: Side, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding 5: a page of one item read, parsed and packed all 8 MB on the event loop."""
    conversation = await side.new("first")
    large = {"type": "message", "role": "user", "content": json.loads(MANY_OBJECTS)}
    for _ in range(14):
        now = await side.conversations.get(TENANT, conversation.id)
        await side.conversations.append(now, [large])
    assert (await side.items(conversation, limit=1))["has_more"]

    def sent_by_redis() -> int:
        return int(store.info("stats")["total_net_output_bytes"])

    with parsed_on_the_loop(monkeypatch) as sizes:
        before = sent_by_redis()
        now = await side.conversations.get(TENANT, conversation.id)
        page = await side.conversations.items(
            now, after="", limit=1, descending=False, hold=at_once
        )
        assert sent_by_redis() - before < 50_000
        assert b"first" in page
        before = sent_by_redis()
        await side.conversations.append(now, [{"type": "message", "role": "user", "content": "z"}])
        assert sent_by_redis() - before < 50_000
        job = await side.prepared(conversation=conversation.id)
    assert isinstance(job, NewJob)
    assert len(job.body) > 7_000_000
    assert sum(sizes) < 5_000
    assert job.body.count(b'"role"') == 17


async def test_a_response_of_a_conversation_is_continued_alone(side: Side) -> None:
    conversation = await side.new("zero")
    first = await answered(side, "one!", conversation=conversation.id, input="one")
    await answered(side, "two!", conversation=conversation.id, input="two")
    branch = await side.prepared(previous_response_id=response_id(first), input="other")
    assert isinstance(branch, NewJob)
    texts = [item["content"] for item in json.loads(branch.body)["input"]]
    assert [text if isinstance(text, str) else text[0]["text"] for text in texts] == [
        "zero", "one", "one!", "other",
    ]  # fmt: skip
    await side.conversations.delete(await side.conversations.get(TENANT, conversation.id))
    with pytest.raises(BadRequest, match="was deleted"):
        await side.prepared(previous_response_id=response_id(first))


async def test_a_reference_is_found_in_all_that_is_before(side: Side) -> None:
    conversation = await side.new("zero")
    first = await answered(side, "one!", conversation=conversation.id, input="one")
    reference = [{"type": "item_reference", "id": "msg_one!"}]
    await side.texts(conversation)
    for before in ({"conversation": conversation.id}, {"previous_response_id": response_id(first)}):
        job = await side.prepared(**before, input=reference)
        assert isinstance(job, NewJob)
        assert json.loads(job.body)["input"][3]["content"][0]["text"] == "one!"
        with pytest.raises(BadRequest, match="not found"):
            await side.prepared(**before, input=[{"type": "item_reference", "id": "msg_x"}])


@pytest.mark.parametrize("how", ["cancelled", "failed", "deleted", "lost"])
async def test_a_response_without_an_answer_adds_nothing(
    side: Side, store: Redis, how: str
) -> None:
    conversation = await side.new("zero")
    job_id = await side.create(conversation=conversation.id)
    if how == "cancelled":
        await side.queue.cancel(TENANT, job_id)
    elif how == "deleted":
        store.delete(keys.job(0, job_id))
    else:
        (job,) = await claim(side.queue)
        event = JobEvent.FAIL if how == "failed" else JobEvent.COMPLETE
        await finish(
            side.queue, job, make_answer(event=event, body=b"" if how == "lost" else b"{}")
        )
    assert await side.texts(conversation) == ["zero"]
    assert await side.create(conversation=conversation.id)


async def test_a_conversation_has_one_turn_at_a_time(side: Side) -> None:
    conversation = await side.new("zero")
    await side.create(conversation=conversation.id)
    now = await side.conversations.get(TENANT, conversation.id)
    first_id = (await side.items(conversation))["data"][0]["id"]
    with pytest.raises(ConversationLocked):
        await side.create(conversation=conversation.id)
    with pytest.raises(ConversationLocked):
        await side.conversations.append(now, [{"role": "user", "content": "x"}])
    with pytest.raises(ConversationLocked):
        await side.conversations.remove(now, first_id)
    # A gateway that has read the conversation before the turn began is refused by the script.
    with pytest.raises(ConversationLocked):
        await side.conversations.append(now._replace(job=""), [{"role": "user", "content": "x"}])
    with pytest.raises(ConversationLocked):
        await side.conversations.remove(now._replace(job=""), first_id)


async def test_two_creates_at_the_same_instant_one_wins(side: Side) -> None:
    conversation = await side.new("zero")
    jobs = [await side.prepared(conversation=conversation.id) for _ in range(5)]
    results = await asyncio.gather(
        *(side.submit(job) for job in jobs if isinstance(job, NewJob)), return_exceptions=True
    )
    assert sum(isinstance(result, str) for result in results) == 1
    assert sum(isinstance(result, ConversationLocked) for result in results) == 4
    assert len(await claim(side.queue)) == 1


async def test_a_change_between_read_and_submit_is_noticed(side: Side) -> None:
    conversation = await side.new("zero")
    for change in range(3):
        job = await side.prepared(conversation=conversation.id)
        assert isinstance(job, NewJob)
        now = await side.conversations.get(TENANT, conversation.id)
        if change == 0:
            await side.conversations.append(now, [{"role": "user", "content": "more"}])
        elif change == 1:
            page = await side.items(conversation)
            await side.conversations.remove(now, page["data"][0]["id"])
        else:
            await side.conversations.delete(now)
        with pytest.raises(NotFound if change == 2 else ConversationLocked):
            await side.submit(job)
    assert await claim(side.queue) == []


async def test_a_repeated_call_joins_the_first_one(side: Side) -> None:
    """Finding 7: 400 conversation_locked while the first one runs."""
    conversation = await side.new("zero")
    first = await side.create("key", conversation=conversation.id)
    assert await side.create("key", conversation=conversation.id) == first
    (job,) = await claim(side.queue)
    assert await side.create("key", conversation=conversation.id) == first
    with pytest.raises(IdempotencyKeyReused):
        await side.create("key", conversation=conversation.id, input="other")
    await end(side.queue, job, "done")
    assert await side.create("key", conversation=conversation.id) == first
    assert await side.texts(conversation) == ["zero", "x", "done"]


async def test_a_repeated_call_joins_although_the_history_is_gone(side: Side) -> None:
    first = await answered(side, "one!")
    second = await side.create("key", previous_response_id=response_id(first))
    await side.queue.delete(first)
    assert await side.create("key", previous_response_id=response_id(first)) == second
    conversation = await side.new()
    in_it = await side.create("key", conversation=conversation.id)
    await side.conversations.delete(await side.conversations.get(TENANT, conversation.id))
    assert await side.create("key", conversation=conversation.id) == in_it


async def test_a_submit_that_is_sent_twice_is_one_turn(side: Side) -> None:
    conversation = await side.new()
    job = await side.prepared(conversation=conversation.id)
    assert isinstance(job, NewJob)
    assert await side.submit(job) == job.id
    assert await side.submit(job) == job.id
    assert len(await claim(side.queue)) == 1


async def test_an_item_is_stored_once(side: Side) -> None:
    conversation = await side.new("zero")
    (item,) = (await side.items(conversation))["data"]
    now = await side.conversations.get(TENANT, conversation.id)
    with pytest.raises(BadRequest, match="already"):
        await side.conversations.append(now, [item | {"content": []}])
    await side.conversations.append(now, [item])  # as a call whose reply was lost
    await answered(side, "one!", conversation=conversation.id, input=[item])
    assert await side.texts(conversation) == ["zero", "one!"]


async def test_limits_are_in_bytes(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding 6: 32 MB were kept under a limit of 8 MB, which counted characters."""
    most_items(monkeypatch, 5)
    small = Side(queue, Settings(max_body_bytes=2000))
    conversation = await small.new()

    async def append(*texts: str) -> None:
        now = await small.conversations.get(TENANT, conversation.id)
        await small.conversations.append(now, [{"role": "user", "content": t} for t in texts])

    await append("\N{EARTH GLOBE EUROPE-AFRICA}" * 300)  # 4 bytes each
    with pytest.raises(BadRequest, match="at most 2000 bytes"):
        await append("\N{EARTH GLOBE EUROPE-AFRICA}" * 300)
    with pytest.raises(BadRequest, match="at most 5 items"):
        await append(*"abcde")
    with pytest.raises(BadRequest, match="at most 5 items"):
        await small.new(*"abcdef")


async def test_a_conversation_lies_in_the_shard_of_its_id(redis_url: str) -> None:
    async with open_queue(redis_url, shards=5) as queue:
        side = Side(queue, Settings(shards=5))
        found = set()
        for _ in range(40):
            conversation = await side.new("zero")
            job = await side.create("key", conversation=conversation.id)
            assert shard_of_conversation(conversation.id) == shard_in(job)
            found.add(shard_in(job))
        assert len(found) > 1  # all five but once in 1,500 times
        with pytest.raises(NotFound):
            await side.create(conversation="conv_" + "f" * 35)


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
                running |= {job.id: job for job in await claim(side.queue)}
            elif act == "end" and running:
                job_id, leased = running.popitem()
                if random_of.random() < 0.3:
                    await side.queue.cancel(TENANT, job_id)
                else:
                    await end(side.queue, leased, f"out{step}")
                    expected += [inputs[job_id], f"out{step}"]
            elif act == "append":
                now = await side.conversations.get(TENANT, conversation.id)
                stale = now._replace(job=random_of.choice(["", now.job]))
                await side.conversations.append(stale, [{"role": "user", "content": f"a{step}"}])
                expected.append(f"a{step}")
        assert len(running) <= 1
        assert await side.texts(conversation) == expected


async def test_a_response_can_be_deleted_although_its_input_is_lost(
    side: Side, store: Redis
) -> None:
    made = [await answered(side, "out", input="p" * 5_000)]
    for _ in range(3):
        previous = response_id(made[-1])
        made.append(await answered(side, "out", previous_response_id=previous, input="x"))
    store.delete(keys.job(shard_in(made[2]), made[2]))
    with pytest.raises(StreamReset):
        await side.input_texts(made[1])
    stored = await stored_response(side.queue, TENANT, response_id(made[1]))
    await side.responses.delete(stored)
    with pytest.raises(NotFound):
        await stored_response(side.queue, TENANT, response_id(made[1]))
    with pytest.raises(StreamReset):
        await side.input_texts(made[0])

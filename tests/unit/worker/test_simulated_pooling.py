"""The simulated engine's embeddings, classes, scores and tokens."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.asgi_client import Recorder, Reply, call
from tests.settings import Settings
from tests.waiting import eventually
from worker.engines.interface import JOURNAL
from worker.engines.simulated.engine import SimulatedEngine

TALK = [{"role": "user", "content": "hello"}]


@pytest.fixture
async def engine() -> AsyncIterator[SimulatedEngine]:
    """Steps of a millisecond."""
    engine = SimulatedEngine(Settings(sim_step_ms=1, sim_step_us_per_seq=0, sim_max_model_len=64))
    await engine.start()
    yield engine
    engine.close()


async def ask(engine: SimulatedEngine, path: str, journal: Any = None, **body: Any) -> Reply:
    JOURNAL.set(journal)
    return await call(engine, "POST", path, body)


async def vectors(engine: SimulatedEngine, **body: Any) -> list[list[float]]:
    answer = (await ask(engine, "/v1/embeddings", **body)).json()
    return [item["embedding"] for item in answer["data"]]


async def test_equal_texts_have_equal_embeddings_of_length_one(engine: SimulatedEngine) -> None:
    first, second, third = await vectors(engine, input=["a text", "another", "a text"])
    assert first == third != second
    assert math.sqrt(sum(number**2 for number in second)) == pytest.approx(1)
    (alone,) = await vectors(engine, input="a text")
    assert alone == first
    assert len(await vectors(engine, input=[[1, 2], [3]])) == 2
    assert len(await vectors(engine, input=[1, 2])) == 1
    assert len(await vectors(engine, messages=[TALK, TALK])) == 2
    assert len(await vectors(engine, input=TALK)) == 1


async def test_base64_and_bytes_are_the_same_numbers(engine: SimulatedEngine) -> None:
    texts = ["a", "b", "c"]
    numbers = [pytest.approx(each, abs=1e-6) for each in await vectors(engine, input=texts)]
    encoded: Any = await vectors(engine, input=texts, encoding_format="base64")
    assert [list(struct.unpack("<16f", base64.b64decode(each))) for each in encoded] == numbers
    whole = await ask(engine, "/v1/embeddings", input=texts, encoding_format="bytes")
    assert whole.headers["content-type"] == "application/octet-stream"
    items = json.loads(whole.headers["metadata"])["data"]
    parts = [whole.body[item["start"] : item["end"]] for item in items]
    assert [list(struct.unpack("<16f", part)) for part in parts] == numbers
    only = await ask(engine, "/v1/embeddings", input=texts, encoding_format="bytes_only")
    assert (only.body, only.headers.get("metadata")) == (whole.body, None)


async def test_coheres_binary_types_are_bits_of_the_floats(engine: SimulatedEngine) -> None:
    kinds = ["float", "ubinary", "binary"]
    answer = (await ask(engine, "/v2/embed", texts=["a"], embedding_types=kinds)).json()
    (floats,), (bits,), (signed,) = (answer["embeddings"][kind] for kind in kinds)
    assert bits == [byte + 128 for byte in signed]
    shown = "".join(f"{byte:08b}" for byte in bits)
    assert shown == "".join("1" if number >= 0 else "0" for number in floats)


async def test_the_document_that_is_the_query_comes_first(engine: SimulatedEngine) -> None:
    documents = ["one", {"content": [{"type": "text", "text": "two"}]}, "three"]
    answer = (await ask(engine, "/rerank", query="two", documents=documents, top_n=2)).json()
    assert answer["results"][0]["index"] == 1
    assert answer["results"][0]["relevance_score"] == pytest.approx(1)
    assert answer["results"][0]["document"]["multi_modal"] == [{"type": "text", "text": "two"}]
    assert len(answer["results"]) == 2


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/embeddings", {}, "Field required"),
        ("/v1/embeddings", {"input": []}, "at least one prompt"),
        ("/v1/embeddings", {"input": "x", "dimensions": 3}, "matryoshka"),
        ("/v1/embeddings", {"input": "word " * 999}, "maximum context length is 64"),
        ("/v1/embeddings", {"input": {"a": 1}}, "validation error"),
        ("/v2/embed", {}, "non-empty"),
        ("/score", {"queries": "x"}, "Field required"),
        ("/score", {"queries": ["x", "y"], "documents": ["a"]}, "1:1, 1:N or N:N"),
        ("/rerank", {"query": "x", "documents": []}, "At least one text"),
        ("/tokenize", {}, "Field required"),
        ("/detokenize", {"tokens": "x"}, "validation error"),
        ("/generative_scoring", {"query": "", "items": [], "label_token_ids": [1]}, "one item"),
        ("/generative_scoring", {"query": "", "items": ["x"], "label_token_ids": []}, "one token"),
        ("/v1/systemone", {"state": "", "questions": {}}, "one question"),
        ("/v1/chat/completions/batch", {"messages": [TALK], "n": 2}, "n > 1"),
        ("/invocations", {"nothing": 1}, "Field required"),
    ],
)
async def test_a_wrong_request_is_refused(
    engine: SimulatedEngine, path: str, body: dict[str, Any], words: str
) -> None:
    reply = await ask(engine, path, **body)
    assert reply.status == 400
    assert words in reply.json()["error"]["message"]
    assert engine.load().unfinished == 0


async def test_an_invocation_is_answered_by_the_route_of_its_fields(
    engine: SimulatedEngine,
) -> None:
    async def of(**body: Any) -> Any:
        return (await ask(engine, "/invocations", max_tokens=2, **body)).json().get("object")

    assert await of(messages=TALK) == "chat.completion"
    assert await of(prompt="x") == "text_completion"
    assert await of(input="x", stream=True) == "list"
    assert (await ask(engine, "/invocations", query="x", documents=["y"])).json()["results"]


async def test_each_input_is_a_sequence_of_the_batch_and_is_counted(
    engine: SimulatedEngine,
) -> None:
    journal = Recorder()
    slow = SimulatedEngine(Settings(sim_step_ms=200, sim_step_us_per_seq=0))
    await slow.start()
    asking = asyncio.create_task(ask(slow, "/v1/embeddings", journal, input=["a", "b", "c"]))

    async def running() -> bool:
        return slow.load().unfinished == 3

    await eventually(running, "three sequences in the engine")
    usage = (await asking).json()["usage"]
    assert slow.load().unfinished == 0
    slow.close()
    assert sum(journal.prompts.values()) == usage["prompt_tokens"] == usage["total_tokens"] == 3
    assert journal.token_ids == {}


async def test_the_choices_of_a_batch_are_those_of_its_conversations(
    engine: SimulatedEngine,
) -> None:
    other = [{"role": "user", "content": "another question"}]
    fields = {"max_tokens": 4, "seed": 1}
    batch = await ask(engine, "/v1/chat/completions/batch", messages=[TALK, other], **fields)
    alone = [
        (await ask(engine, "/v1/chat/completions", messages=each, **fields)).json()
        for each in (TALK, other)
    ]
    texts = [choice["message"]["content"] for choice in batch.json()["choices"]]
    assert texts == [answer["choices"][0]["message"]["content"] for answer in alone]
    tokens = sum(answer["usage"]["completion_tokens"] for answer in alone)
    assert batch.json()["usage"]["completion_tokens"] == tokens

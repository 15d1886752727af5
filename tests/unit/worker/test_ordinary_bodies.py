"""What clients ordinarily send in one call passes the wall of body_check.py, with vLLM's models."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest
from fastapi import FastAPI
from pydantic import ValidationError

from tests.harness.settings import Settings
from worker.engines.vllm.body_check import reading
from worker.engines.vllm.body_models import stop_at_first_errors, validators

pytestmark = pytest.mark.vllm

_ROUTERS = (
    "openai.chat_completion",
    "openai.completion",
    "openai.responses",
    "anthropic",
    "serve.tokenize",
    "pooling.embed",
    "pooling.pooling",
    "pooling.classify",
    "pooling.scoring",
)


def ids(lists: int, tokens: int) -> list[list[int]]:
    return [[(7 * i + j) % 50_000 for j in range(tokens)] for i in range(lists)]


def texts(count: int) -> list[str]:
    return [f"text {i} " * 50 for i in range(count)]


def messages(count: int) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[i % 2], "content": f"message {i}"} for i in range(count)]


def function(name: str) -> dict[str, Any]:
    properties = {
        f"p{i}": {"type": "string", "description": "which one", "enum": ["a", "b", "c"]}
        for i in range(60)
    }
    return {"name": name, "parameters": {"type": "object", "properties": properties}}


CALLS = [
    {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    {
        "role": "assistant",
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        ],
    },
    {"role": "tool", "tool_call_id": "c", "content": "ok"},
]
ITEMS = [
    {"role": "user", "content": "x"},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
    {
        "type": "message",
        "role": "assistant",
        "id": "msg_1",
        "status": "completed",
        "content": [{"type": "output_text", "text": "x", "annotations": []}],
    },
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "ok"},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "x"}]},
]
TOOLS = [function(f"f{i}") for i in range(128)]
PARTS = [{"type": "text", "text": "x"}] * 2000

ORDINARY: dict[str, tuple[str, dict[str, Any]]] = {
    "64 inputs of 512 tokens": ("/v1/embeddings", {"input": ids(64, 512)}),
    "2,048 inputs of 146 tokens": ("/v1/embeddings", {"input": ids(2048, 146)}),
    "2,048 texts": ("/v1/embeddings", {"input": texts(2048)}),
    "a conversation to embed": ("/v1/embeddings", {"messages": messages(2000)}),
    "tokens to pool": ("/pooling", {"input": ids(2048, 146)}),
    "tokens to classify": ("/classify", {"input": ids(2048, 146)}),
    "texts to score": ("/score", {"text_1": "x", "text_2": texts(2048)}),
    "documents to score": ("/v1/score", {"queries": "x", "documents": texts(2048)}),
    "texts to rank": ("/rerank", {"query": "x", "documents": texts(2048)}),
    "parts to rank": ("/v1/rerank", {"query": "x", "documents": [{"content": PARTS[:1]}] * 2048}),
    "Cohere's texts": ("/v2/embed", {"texts": texts(2048)}),
    "64 prompts of 4,096 tokens": ("/v1/completions", {"prompt": ids(64, 4096)}),
    "a prompt of 131,072 tokens": ("/v1/completions", {"prompt": ids(1, 131_072)[0]}),
    "1,024 prompts": ("/v1/completions", {"prompt": texts(1024)}),
    "a conversation to tokenize": ("/tokenize", {"messages": messages(2000)}),
    "131,072 tokens to a text": ("/detokenize", {"tokens": ids(1, 131_072)[0]}),
    "2,000 messages": ("/v1/chat/completions", {"messages": messages(2000)}),
    "2,000 messages with calls": ("/v1/chat/completions", {"messages": CALLS * 667}),
    "2,000 parts": ("/v1/chat/completions", {"messages": [{"role": "user", "content": PARTS}]}),
    "128 tools": (
        "/v1/chat/completions",
        {"messages": CALLS, "tools": [{"type": "function", "function": each} for each in TOOLS]},
    ),
    "3,000 items": ("/v1/responses", {"input": ITEMS * 500}),
    "3,000 messages as items": ("/v1/responses", {"input": messages(3000)}),
    "128 tools of a response": (
        "/v1/responses",
        {"input": "x", "tools": [{"type": "function", **each} for each in TOOLS]},
    ),
    "Anthropic's messages": ("/v1/messages", {"max_tokens": 1, "messages": messages(2000)}),
}


WRONG_ITEMS: list[Any] = [
    {},
    {"type": "no such"},
    {"type": None, "id": "x"},
    {"type": "message"},
    {"role": "nobody", "content": "x"},
    {"type": "function_call"},
    "x",
]


class Models:
    """VLLM's, as they are and as the wall has them."""

    def __init__(self) -> None:
        app = FastAPI()
        for name in _ROUTERS:
            module = importlib.import_module(f"vllm.entrypoints.{name}.api_router")
            if hasattr(module, "router"):
                app.include_router(module.router)
            else:
                module.attach_router(app)
        self.fields = {path: fields[0] for path, fields in validators(app).items()}
        self.plain = {path: each._type_adapter.validator for path, each in self.fields.items()}
        assert stop_at_first_errors(app) == self.fields.keys()
        self.read = reading(app, Settings().validation_timeout_s)

    def accepted(self, path: str, body: Any) -> tuple[Any, Any]:
        """The model of a body, None if it is wrong: as vLLM makes it, and as the wall does."""
        try:
            plain = self.plain[path].validate_python(body)
        except ValidationError:
            plain = None
        value, errors = self.fields[path].validate(body, {}, loc=("body",))
        return plain, None if errors else value


@pytest.fixture(scope="module")
def models() -> Models:
    return Models()


@pytest.mark.parametrize("name", ORDINARY)
def test_it_is_read_in_time(models: Models, name: str) -> None:
    path, fields = ORDINARY[name]
    body = {"model": "m", **fields}
    assert models.read(path.encode() + b"\n" + json.dumps(body).encode()) == ""
    _, errors = models.fields[path].validate(body, {}, loc=("body",))
    assert not errors, "it is no ordinary body"


@pytest.mark.parametrize("item", [*ITEMS, *WRONG_ITEMS], ids=str)
def test_items_mean_what_they_mean_to_vllm(models: Models, item: Any) -> None:
    plain, ours = models.accepted("/v1/responses", {"model": "m", "input": [item] * 2})
    assert (plain and plain.input) == (ours and ours.input)
    assert item in WRONG_ITEMS or ours is not None

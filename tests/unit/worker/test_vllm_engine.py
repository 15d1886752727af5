"""vLLM in the worker's process: its start, the errors of its application, and an engine over
several machines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.responses import JSONResponse
from typing_extensions import TypedDict

from tests.harness.asgi_client import call
from worker.engines.vllm import engine as vllm_engine
from worker.engines.vllm.engine import (
    end_lists_at_first_error,
    fail_fast,
    until_broken,
    warm_up,
)

pytestmark = pytest.mark.vllm  # shares the import


class Part(TypedDict):
    """A part of an item."""

    text: str


class Item(BaseModel):
    """One of two types."""

    role: str
    content: str | list[Part] = ""


class Other(BaseModel):
    """The other one."""

    name: str
    numbers: tuple[int, ...]


class Request(BaseModel):
    """A body."""

    input: list[Item | Other]


def application() -> FastAPI:
    app = FastAPI()

    @app.post("/items")
    async def items(request: Request) -> int:
        return len(request.input)

    @app.exception_handler(RequestValidationError)
    async def count(_: Any, error: RequestValidationError) -> JSONResponse:
        return JSONResponse({"errors": len(error.errors())}, 400)

    return app


async def answer(app: FastAPI, items: list[Any]) -> Any:
    body = json.dumps({"input": items}).encode()
    return (await call(app, "POST", "/items", body, {"content-length": str(len(body))})).json()


@pytest.mark.parametrize("wrong", [{}, {"role": "x", "content": [{}] * 50}, {"numbers": ["x"] * 9}])
async def test_a_list_ends_at_its_first_wrong_item(wrong: Any) -> None:
    app = application()
    end_lists_at_first_error(app)
    few = (await answer(app, [wrong]))["errors"]
    assert (await answer(app, [wrong] * 200))["errors"] == few < 10
    assert await answer(app, [{"role": "x", "content": [{"text": "y"}]}] * 200) == 200


def test_fields_that_are_named_as_types_are_no_schemas() -> None:
    schema = {
        "type": "model-fields",
        "fields": {
            "type": {"type": "model-field", "schema": {"type": "list", "items_schema": {}}},
            "default": {"type": "model-field", "schema": {"type": "default", "default": ["list"]}},
        },
    }
    changed = fail_fast(schema)
    assert changed["fields"]["type"]["schema"]["fail_fast"] is True
    assert changed["fields"]["default"] == schema["fields"]["default"]  # type: ignore[index]
    assert "fail_fast" not in schema["fields"]["type"]["schema"]  # type: ignore[index]


class Engine:
    """Records its requests; each ends with `error`, if there is one."""

    def __init__(self, error: Exception | None = None, *, errored: bool = False) -> None:
        self.asked: list[tuple[int | None, int | None]] = []
        self.errored = errored
        self._error = error

    async def generate(self, prompt: Any, params: Any, request_id: str) -> AsyncIterator[None]:
        assert params.max_tokens == 1
        self.asked.append((params.logprobs, params.prompt_logprobs))
        yield None
        if self._error:
            raise self._error


async def test_a_model_that_refuses_them_starts() -> None:
    engine = Engine(ValueError("no prompt_logprobs"))
    await warm_up(engine)
    assert len(engine.asked) == 2


async def test_an_engine_that_dies_of_it_does_not_start() -> None:
    with pytest.raises(RuntimeError):
        await warm_up(Engine(RuntimeError("dead"), errored=True))


class Group:
    """An engine that answers its checks in turn: an error is raised."""

    def __init__(self, *answers: Exception | None, unfinished: tuple[int, ...] = ()) -> None:
        self.answers = list(answers)
        self.unfinished = list(unfinished)
        self.asked = 0

    def get_num_unfinished_requests(self) -> int:
        return self.unfinished.pop(0) if self.unfinished else 0

    async def collective_rpc(self, method: str, timeout: float) -> list[None]:
        assert method == "check_health"
        assert timeout < vllm_engine.GROUP_CHECK_S + 5
        self.asked += 1
        if answer := self.answers.pop(0):
            raise answer
        return [None, None]


async def broken(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_engine, "GROUP_CHECK_S", 0.0)
    await asyncio.wait_for(until_broken(group), 10)


async def test_an_engine_with_requests_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(RuntimeError("Executor failed."), unfinished=(1, 5))
    await broken(group, monkeypatch)
    assert (group.asked, group.unfinished) == (1, [])


async def test_a_question_that_waits_for_a_step_is_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group(TimeoutError(), TimeoutError(), unfinished=(0, 1))
    await broken(group, monkeypatch)
    assert group.asked == 2


async def test_a_machine_that_does_not_answer_is_lost_though_a_request_came_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group(Exception("RPC call to check_health timed out."), unfinished=(0, 1))
    await broken(group, monkeypatch)
    assert group.asked == 1

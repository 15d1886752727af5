"""Validation of a body ends at a list's first wrong element."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.responses import JSONResponse
from typing_extensions import TypedDict

from tests.harness.asgi_client import call
from worker.engines.vllm import first_errors
from worker.engines.vllm.first_errors import fail_fast


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
    first_errors.install(app)
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

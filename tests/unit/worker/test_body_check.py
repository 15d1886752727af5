"""Bodies are read in another process first where that may take long, and wrong ones end early."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from annotated_types import Le
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, field_validator
from starlette.responses import JSONResponse
from typing_extensions import TypedDict

from shared.platform import fast_paths
from tests.harness.asgi_client import Reply, call
from worker.engines.interface import JOB, JobFacts
from worker.engines.vllm.body_check import FEW_VALUES, MANY_VALUES, BodyChecker, CheckedBodies
from worker.engines.vllm.body_models import cheap
from worker.engines.vllm.trial_process import _WALL_TIME
from worker.engines.vllm.trials import WAIT_S
from worker.engines.vllm.vllm_settings import VllmSettings

SECONDS, LONG = 0.2, 60.0
"""What a body may take: to be refused soon, and never."""


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
    behave: str = ""

    @field_validator("behave")
    @classmethod
    def _behave(cls, value: str) -> str:
        while value == "hang":
            pass
        if value == "memory":
            bytearray(1 << 30)
        if value == "sleep":
            time.sleep(60)
        return value


def build_app() -> FastAPI:
    app = FastAPI()

    @app.post("/items")
    async def items(request: Request) -> int:
        return len(request.input)

    @app.exception_handler(RequestValidationError)
    async def count(_: Any, error: RequestValidationError) -> JSONResponse:
        return JSONResponse({"errors": len(error.errors())}, 400)

    return app


class Checker(BodyChecker):
    """Counts what it is asked."""

    asked = 0

    async def check(self, path: str, body: bytes, tenant: str) -> tuple[int, str]:
        self.asked += 1
        return await super().check(path, body, tenant)


@pytest_asyncio.fixture
async def checker() -> AsyncIterator[Checker]:
    checker = Checker(SECONDS)
    await checker.start(build_app)
    yield checker
    checker.trials.close()


@pytest_asyncio.fixture
async def patient() -> AsyncIterator[Checker]:
    checker = Checker(LONG)
    await checker.start(build_app)
    yield checker
    checker.trials.close()


async def post(app: CheckedBodies, items: list[Any], behave: str = "") -> Reply:
    body = json.dumps({"input": items, "behave": behave}).encode()
    return await call(app, "POST", "/items", body, {"content-length": str(len(body))})


@pytest.mark.parametrize("wrong", [{}, {"role": "x", "content": [{}] * 50}, {"numbers": ["x"] * 9}])
async def test_a_list_ends_at_its_first_wrong_item(checker: Checker, wrong: Any) -> None:
    app = CheckedBodies(build_app(), checker)
    few = (await post(app, [wrong])).json()["errors"]
    assert (await post(app, [wrong] * 200)).json()["errors"] == few < 10


async def test_a_short_or_simple_body_is_not_tried(patient: Checker) -> None:
    app, checker = CheckedBodies(build_app(), patient), patient
    assert (await post(app, [{"role": "x"}] * 100)).json() == 100
    assert (await post(app, [{"role": "x" * 100_000}])).json() == 1
    assert checker.asked == 0
    assert (await post(app, [{"role": "x"}] * MANY_VALUES)).json() == MANY_VALUES
    assert checker.asked == 1


@pytest.mark.parametrize(
    ("behave", "text"), [("hang", "0.2 s to read"), ("sleep", "0.2 s"), ("memory", "400 MiB")]
)
async def test_what_can_not_be_read_is_an_error_of_the_request(
    checker: Checker, patient: Checker, behave: str, text: str
) -> None:
    JOB.set(JobFacts("team", suspicious=True))  # also where it is small
    app = CheckedBodies(build_app(), checker)
    reply = await post(app, [{"role": "x"}] * FEW_VALUES, behave)
    error = reply.json()["error"]
    assert (reply.status, error["code"], error["type"]) == (400, 400, "BadRequestError")
    assert text in error["message"]
    app = CheckedBodies(build_app(), patient)
    assert (await post(app, [{"role": "x"}] * FEW_VALUES)).json() == FEW_VALUES


async def test_once_the_process_has_ended_such_bodies_get_503(checker: Checker) -> None:
    app = CheckedBodies(build_app(), checker)
    os.kill(checker.trials.pid, signal.SIGKILL)
    assert (await post(app, [{"role": "x"}] * MANY_VALUES)).status == 503
    assert (await post(app, [{"role": "x"}] * MANY_VALUES)).status == 503
    assert (await post(app, [{"role": "x"}])).json() == 1


async def test_without_private_parts_of_pydantic_all_but_the_smallest_bodies_are_tried(
    patient: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_paths, "_mode", "off")
    app, checker = CheckedBodies(build_app(), patient), patient
    assert (await post(app, [{}] * 5)).json()["errors"] >= 5
    assert checker.asked == 0
    assert (await post(app, [{"role": "x"}] * 100)).json() == 100
    assert checker.asked == 1


def test_a_child_is_ended_before_its_question_is_given_up() -> None:
    most = {}
    for name in ("validation_timeout_s", "grammar_timeout_s"):
        (most[name],) = (
            each.le for each in VllmSettings.model_fields[name].metadata if isinstance(each, Le)
        )
    body = BodyChecker(most["validation_timeout_s"]).trials._limits.seconds
    # Else a body that is too slow gets 503, as if it could be read another time.
    assert max(body, most["grammar_timeout_s"]) * _WALL_TIME < WAIT_S


def test_fields_that_are_named_as_types_are_no_schemas() -> None:
    schema = {
        "type": "model-fields",
        "fields": {
            "type": {"type": "model-field", "schema": {"type": "list", "items_schema": {}}},
            "default": {"type": "model-field", "schema": {"type": "default", "default": ["list"]}},
        },
    }
    changed = cheap(schema)
    assert changed["fields"]["type"]["schema"]["fail_fast"] is True
    assert changed["fields"]["default"] == schema["fields"]["default"]  # type: ignore[index]
    assert "fail_fast" not in schema["fields"]["type"]["schema"]  # type: ignore[index]

"""Each row of the endpoint table is described, checked, and answered by the simulated engine."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from gateway.apis.table import APIS
from gateway.app import create_app
from gateway.core.admission import check_request
from gateway.http.body import parse_object
from shared.api.endpoint import BodyKind, Endpoint, InputKind, ModelField
from shared.api.endpoints import ENDPOINTS
from shared.api.multipart import content_type_of
from shared.job.errors import BadRequest
from tests.harness.asgi_client import Recorder
from tests.harness.settings import Settings
from worker.core.run import Exchange
from worker.engines.interface import JOURNAL
from worker.engines.simulated.engine import SimulatedEngine

ROWS = list(ENDPOINTS.values())
ROUTED = {route.path for api in APIS for route in api.plain}
SERVED = [row for row in ROWS if row.path in ROUTED]
SETTINGS = Settings()


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    """The description of the API."""
    return create_app(SETTINGS).fastapi.openapi()


CONVERSATION = [{"role": "user", "content": "hello"}]
GIVEN: dict[InputKind, dict[str, Any]] = {
    InputKind.MESSAGES: {"messages": CONVERSATION, "max_tokens": 2},
    InputKind.RESPONSE: {"input": "hello", "max_output_tokens": 2},
    InputKind.CONVERSATIONS: {"messages": [CONVERSATION, CONVERSATION], "max_tokens": 2},
    InputKind.PROMPT: {"prompt": "hello", "max_tokens": 2},
    InputKind.INPUT: {"input": ["hello", "you"]},
    InputKind.TEXTS: {"texts": ["hello", "you"]},
    InputKind.DOCUMENTS: {"query": "hello", "documents": ["you", "hello"]},
    InputKind.PAIRS: {"queries": "hello", "documents": ["you", "hello"]},
    InputKind.ITEMS: {"query": "hello", "items": ["you", "me"], "label_token_ids": [1]},
    InputKind.TEXT_TO_TOKENIZE: {"prompt": "hello"},
    InputKind.TOKENS: {"tokens": [1, 2]},
    InputKind.ANY: {"messages": CONVERSATION, "max_tokens": 2},
    InputKind.BLOCKS: {"messages": CONVERSATION, "max_tokens": 2},
    InputKind.QUESTIONS: {"state": "hello", "questions": {"a": {"type": "probability"}}},
}


def body(row: Endpoint) -> dict[str, Any]:
    return {"model": "simulated"} | GIVEN.get(row.policy.input, {})


def raw_body(row: Endpoint) -> tuple[bytes, bytes]:
    """A request's bytes, and their content type."""
    if row.body is BodyKind.JSON:
        return json.dumps(body(row)).encode(), b"application/json"
    fields = {name: (None, str(value)) for name, value in body(row).items()}
    form = httpx.Request("POST", "http://x", files={**fields, "file": ("a.wav", b"RIFF")})
    raw = form.read()
    return raw, content_type_of(raw)


def test_the_gateway_checks_a_request() -> None:
    for row in ROWS:
        checked = check_request(row, body(row) | {"stream": True}, SETTINGS)
        assert checked.model == "simulated"
        assert checked.stream == (row.stream is not None)
        with pytest.raises(BadRequest) as caught:
            check_request(row, body(row) | {"model": 7}, SETTINGS)
        assert caught.value.param == "model"


def test_a_request_without_a_model_gets_the_default_where_vllm_has_one() -> None:
    for row in ROWS:
        for given in ({}, {"model": None}, {"model": ""}):
            fields = {k: v for k, v in body(row).items() if k != "model"} | given
            if row.model is ModelField.OPTIONAL:
                assert check_request(row, fields, SETTINGS).model == ""
                continue
            with pytest.raises(BadRequest) as caught:
                check_request(row, fields, SETTINGS)
            assert caught.value.param == "model"


async def test_the_simulated_engine_answers_it(described: dict[str, Any]) -> None:
    for row in SERVED:
        engine = SimulatedEngine(Settings(sim_step_ms=1))
        await engine.start()
        try:
            exchange = Exchange()
            JOURNAL.set(Recorder())
            raw, content_type = raw_body(row)
            await exchange.run(engine, "POST", row.path, raw, content_type=content_type)
            assert exchange.status == 200, bytes(exchange.body)
            schema = {"$ref": f"#/components/schemas/{row.response_schema}"}
            whole = schema | {"components": described["components"]}
            Draft202012Validator(whole).validate(parse_object(bytes(exchange.body)))
        finally:
            engine.close()

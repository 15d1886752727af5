"""What vLLM would validate at great cost is refused by the gateway, and nothing that it accepts."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from gateway.core.admission import check_request
from gateway.core.input_shapes import check_shapes
from shared.api.endpoint import InputKind
from shared.api.endpoints import ENDPOINTS
from shared.job.errors import BadRequest
from tests.harness.settings import Settings
from tests.unit.worker.request_types import (
    JUNK,
    PATHS,
    adapter,
    branches,
    consume,
    fields_of,
    request_type,
    sample,
    wrong_values,
)

pytestmark = pytest.mark.vllm

SETTINGS = Settings()
MODEL = {"model": "m", "max_tokens": 9}
A_THOUSAND = 1000
TIMES = 20
FEW = 4
"""Errors for each wrong element; an item of a response had 233, a message of a chat 20."""
CHECKED_LATER = ("tools",)
"""Lists that are short anyway: at most `max_tools`."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """vLLM writes a line for each item that it could not parse."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def bodies(path: str, times: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Bodies in which one list or object has wrong elements, and the name of its field."""
    for model in branches(request_type(path)):
        whole = {**sample(model), **MODEL}
        for name, (hint, _) in fields_of(model).items():
            for wrong in wrong_values(hint, times):
                if isinstance(wrong.value, list | dict):
                    yield name, {**whole, name: wrong.value}


def refusals() -> tuple[type[Exception], ...]:
    """What vLLM raises for a body that it can't use; some of it by mistake."""
    from vllm.exceptions import VLLMValidationError

    return VLLMValidationError, ValueError, TypeError, AttributeError, LookupError


def n_errors(validation: TypeAdapter[Any], body: dict[str, Any]) -> int:
    """How many errors vLLM notes for a body."""
    try:
        validation.validate_python(copy.deepcopy(body))
    except ValidationError as error:
        return error.error_count()
    except refusals():
        return 1
    return 0


def admitted(path: str, body: dict[str, Any]) -> bool:
    """Whether a body passes the gateway without anybody's permission."""
    try:
        return not check_request(ENDPOINTS[path], body, SETTINGS).restricted
    except BadRequest:
        return False


@pytest.mark.parametrize("path", PATHS)
def test_a_thousand_wrong_elements_are_few_errors(path: str) -> None:
    validation = adapter(path)
    for model in branches(request_type(path)):
        whole = {**sample(model), **MODEL}
        for name in fields_of(model):
            for junk in JUNK:
                for value in ([junk] * A_THOUSAND, [[junk] * A_THOUSAND]):
                    body = {**whole, name: value}
                    if admitted(path, body):
                        assert n_errors(validation, body) <= FEW * A_THOUSAND, (name, junk)


@pytest.mark.parametrize("path", PATHS)
def test_wrong_parts_of_elements_are_few_errors(path: str) -> None:
    validation = adapter(path)
    for name, body in bodies(path, TIMES):
        if name not in CHECKED_LATER and admitted(path, body):
            assert n_errors(validation, body) <= FEW * TIMES, str(body)[:500]


def test_empty_items_of_a_response_are_refused() -> None:
    """500 of them were 1.3 GB of errors in vLLM."""
    assert not admitted("/v1/responses", {"input": [{}] * A_THOUSAND})


def goes_on(path: str, validation: TypeAdapter[Any], body: dict[str, Any]) -> bool:
    """Whether vLLM makes a prompt of a body."""
    from vllm.entrypoints.openai.responses.utils import construct_input_messages

    try:
        request = validation.validate_python(copy.deepcopy(body))
        if path == "/v1/responses":
            request.input = construct_input_messages(request_input=request.input)
        consume(request)
    except refusals():
        return False
    return True


def refused(kind: InputKind, body: dict[str, Any]) -> BadRequest | None:
    """The gateway's refusal of the lists in a body."""
    try:
        check_shapes(kind, body)
    except BadRequest as refusal:
        return refusal
    return None


def excused(body: dict[str, Any], param: str) -> bool:
    """What only the gateway refuses: an object where a list is due, `true` as an integer, null in
    two options of a part that vLLM takes in some items only, and token ids below zero, which
    vLLM's engine refuses."""
    place: Any = body
    for step in param.replace("]", "").replace("[", ".").split("."):
        place = place[int(step)] if step.isdigit() else place.get(step)
    if any(odd in str(place) for odd in ("{}", "'ttl': None", "'detail': None")):
        return True
    return str(place).strip("[]") in ("True", "-1")


@pytest.mark.parametrize("path", PATHS)
def test_what_vllm_accepts_is_not_refused(path: str) -> None:
    validation, kind = adapter(path), ENDPOINTS[path].policy.input
    for name, body in bodies(path, 1):
        refusal = refused(kind, body)
        # Of several models that a body may have, another may not have this field.
        others = {key: value for key, value in body.items() if key != name}
        if refusal and not excused(body, refusal.param or "") and goes_on(path, validation, body):
            assert goes_on(path, validation, others), f"{refusal}: {str(body)[:500]}"

"""The OpenAPI description of the HTTP API: `/openapi.json`, shown by `/docs`.

FastAPI describes the routes and their parameters. Bodies are parsed and answered without FastAPI,
so their schemas are in `schemas.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from gateway.apis import error_answers
from gateway.apis.admin import operation_schemas
from gateway.apis.jobs.routes import JobRequest
from gateway.apis.responses.response_schemas import RESPONSE_ANSWERS, RESPONSE_BODIES
from gateway.apis.schemas import SCHEMAS
from gateway.core.api import Api
from gateway.core.endpoint_route import CALL_HEADERS
from gateway.core.schema import TEXT, Schema, ref
from gateway.http.middleware import PUBLIC_PATHS
from shared.api.endpoint import ErrorStyle
from shared.api.error_shapes import error_style
from shared.job.lanes import CLIENT_LANES

_BODIES = {
    **RESPONSE_BODIES,
    "/jobs": "JobRequest",
    "/admin/jobs/cancel": "BulkRequest",
    "/admin/jobs/retry": "BulkRequest",
}
_RESPONSES: dict[tuple[str, str], dict[str, str]] = {
    **RESPONSE_ANSWERS,
    ("get", "/predictions/{model}/v1/models"): {"200": "ModelList"},
    ("get", "/v1/models"): {"200": "ModelList"},
    ("get", "/v1/models/{name}"): {"200": "Model"},
    ("post", "/jobs"): {"202": "Job"},
    ("get", "/jobs"): {"200": "JobList"},
    ("get", "/jobs/{job_id}"): {"200": "Job"},
    ("get", "/jobs/{job_id}/result"): {"202": "Job"},
    ("post", "/jobs/{job_id}/cancel"): {"200": "Job"},
    ("post", "/jobs/{job_id}/retry"): {"202": "Job"},
    ("get", "/jobs/{job_id}/timeline"): {"200": "Timeline"},
    ("get", "/jobs/{job_id}/why"): {"200": "Why"},
    ("get", "/jobs/{job_id}/request"): {"200": "JobRequestKept"},
    ("get", "/admin/jobs/{job_id}"): {"200": "Job"},
    ("get", "/admin/jobs/{job_id}/timeline"): {"200": "Timeline"},
    ("get", "/admin/jobs/{job_id}/why"): {"200": "Why"},
    ("post", "/admin/jobs/cancel"): {"200": "Bulk"},
    ("post", "/admin/jobs/retry"): {"200": "Bulk"},
    ("get", "/admin/keys"): {"200": "KeyList"},
    ("post", "/admin/workers/{worker}/drain"): {"200": "Operation"},
    ("get", "/admin/dead"): {"200": "DeadLetterList"},
    ("get", "/admin/dead/{letter_id}"): {"200": "DeadLetter"},
    ("post", "/admin/dead/{letter_id}/replay"): {"202": "Replay"},
    **operation_schemas.RESPONSES,
}
_EVENT_STREAMS = {"/jobs/{job_id}/events", "/admin/stream", "/v1/responses/{response_id}"}
_JSON = "application/json"
_ERRORS = {ErrorStyle.OPENAI: "Error", ErrorStyle.ANTHROPIC: "AnthropicError"}


def install(app: FastAPI, apis: Iterable[Api], *, with_keys: bool) -> None:
    """Replace FastAPI's description of `app`. `with_keys`: requests need an API key."""

    def openapi() -> Schema:
        if app.openapi_schema is None:
            app.openapi_schema = _describe(app, apis, with_keys=with_keys)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _describe(app: FastAPI, apis: Iterable[Api], *, with_keys: bool) -> Schema:
    schema = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    job_request = JobRequest.model_json_schema()
    job_request["properties"]["lane"] = {"enum": [*CLIENT_LANES, None], "default": None}
    job_request["properties"]["body"] = ref("ChatRequest")
    components = schema.setdefault("components", {})
    found = components.get("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        found.pop(name, None)
    components["schemas"] = (
        found | SCHEMAS | operation_schemas.SCHEMAS | {"JobRequest": job_request}
    )
    for api in apis:
        components["schemas"] |= api.schemas
        for row in api.plain:
            if row.description:
                operations = schema["paths"].setdefault(row.path.replace(":path", ""), {})
                operations[row.method.lower()] = copy.deepcopy(dict(row.description))
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            _complete(operation, method, path)
            if path not in PUBLIC_PATHS:
                operation["security"] = [{"key": []}] if with_keys else [{"key": []}, {}]
    return schema


def _complete(operation: Schema, method: str, path: str) -> None:
    if method == "post" and path in _BODIES:
        content = {_JSON: {"schema": ref(_BODIES[path])}}
        operation["requestBody"] = {"required": True, "content": content}
    if method == "post" and path == "/jobs":
        operation.setdefault("parameters", []).extend(CALL_HEADERS)
    if path == "/jobs/{job_id}/retry":
        content = {_JSON: {"schema": ref("RetryRequest")}}
        operation["requestBody"] = {"required": False, "content": content}
    operation_schemas.add_options(operation, path)
    answers = operation["responses"]
    answers.pop(
        "422", None
    )  # wrong parameters are answered with 400, like all other invalid requests
    for status, name in _RESPONSES.get((method, path), {}).items():
        answer = answers.setdefault(status, {"description": "The job; there is no answer yet"})
        answer["content"] = {_JSON: {"schema": ref(name)}}
    if path in _EVENT_STREAMS and method != "delete":
        content = answers["200"].setdefault("content", {})
        content["text/event-stream"] = {"schema": TEXT}
        if path.endswith("/events") or path == "/admin/stream":
            content.pop(_JSON, None)
    content = {_JSON: {"schema": ref(_ERRORS[error_style(path)])}}
    errors = error_answers.descriptions(method, path, public=path in PUBLIC_PATHS)
    for status, description in errors.items():
        answers.setdefault(status, {"description": description, "content": content})
    answers["4XX"] = answers["5XX"] = {"description": "Another error", "content": content}

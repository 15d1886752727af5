"""The OpenAPI description of the HTTP API: `/openapi.json`, shown by `/docs`.

FastAPI describes the routes and their parameters. Bodies are parsed and answered without FastAPI,
so their schemas are here.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from gateway.http.middleware import PUBLIC_PATHS
from gateway.routes.jobs import JobRequest
from shared.api.endpoints import ENDPOINTS
from shared.protocol.lanes import CLIENT_LANES
from shared.protocol.states import JobState
from shared.queue.dead_letters import KINDS

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "number"}
_WHOLE: Schema = {"type": "integer"}
_YES_NO: Schema = {"type": "boolean"}
_ANYTHING: Schema = {"type": "object"}
_MAYBE_TEXT: Schema = {"type": ["string", "null"]}
_MAYBE_NUMBER: Schema = {"type": ["number", "null"]}
_MAYBE_OBJECT: Schema = {"type": ["object", "null"]}


def _object(required: str, /, **properties: Schema) -> Schema:
    """An object that may have other properties, too. `required`: names with spaces between."""
    return {"type": "object", "required": required.split(), "properties": properties}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_ON_DISCONNECT = "what happens without a client: cancel, keep, or keep_for=<seconds>"

_REQUEST_FIELDS: dict[str, Schema] = {
    "model": _TEXT | {"description": "one of GET /v1/models"},
    "stream": _YES_NO | {"default": False, "description": "server-sent events"},
    "stream_options": _object("", include_usage=_YES_NO),
    "max_tokens": _WHOLE,
    "temperature": _NUMBER,
    "top_p": _NUMBER,
    "n": _WHOLE,
    "seed": _WHOLE,
    "stop": {"anyOf": [_TEXT, _list(_TEXT)]},
    "service_tier": {
        "enum": ["auto", "default", "flex", "priority", None],
        "description": "selects the lane in which the request waits; the answer names it",
    },
    "flotilla": _object("", on_disconnect=_TEXT | {"description": _ON_DISCONNECT}),
}
_RESPONSE_FIELDS: dict[str, Schema] = {
    "id": _TEXT,
    "object": _TEXT,
    "created": _WHOLE,
    "model": _TEXT,
    "usage": _MAYBE_OBJECT,
    "service_tier": _MAYBE_TEXT,
}
_CHOICE: dict[str, Schema] = {"index": _WHOLE, "finish_reason": _MAYBE_TEXT}

_SCHEMAS: dict[str, Schema] = {
    "Error": _object(
        "error",
        error=_object(
            "message type param code",
            message=_TEXT,
            type=_TEXT,
            param=_MAYBE_TEXT,
            code={"type": ["string", "integer", "null"]},
        ),
    ),
    "ChatRequest": _object(
        "model messages",
        **_REQUEST_FIELDS,
        messages=_list(_object("role", role=_TEXT, content={"type": ["string", "array", "null"]})),
        max_completion_tokens=_WHOLE,
        tools=_list(_ANYTHING),
        tool_choice={"type": ["string", "object"]},
        response_format=_ANYTHING,
        logprobs=_YES_NO,
        top_logprobs=_WHOLE,
    )
    | {
        "description": "vLLM's fields; unknown ones are ignored, as by vLLM.",
        "example": {
            "model": "flotilla-demo",
            "messages": [{"role": "user", "content": "What is Flotilla?"}],
        },
    },
    "ChatCompletion": _object(
        "id object created model choices",
        **_RESPONSE_FIELDS,
        choices=_list(
            _object(
                "index message finish_reason",
                **_CHOICE,
                message=_object("role", role=_TEXT, content=_MAYBE_TEXT),
            )
        ),
    ),
    "CompletionRequest": _object(
        "model prompt",
        **_REQUEST_FIELDS,
        prompt={"anyOf": [_TEXT, {"type": "array"}]},
        logprobs=_WHOLE,
        echo=_YES_NO,
    )
    | {
        "description": "vLLM's fields; unknown ones are ignored, as by vLLM.",
        "example": {"model": "flotilla-demo", "prompt": "What is Flotilla?"},
    },
    "Completion": _object(
        "id object created model choices",
        **_RESPONSE_FIELDS,
        choices=_list(_object("index text finish_reason", **_CHOICE, text=_TEXT)),
    ),
    "Job": _object(
        "id object state endpoint model lane stream metadata created_at links",
        id=_TEXT,
        object={"const": "job"},
        state={"enum": [state.value for state in JobState]},
        endpoint=_TEXT,
        model=_TEXT,
        lane=_TEXT,
        stream=_YES_NO,
        metadata={"type": "object", "additionalProperties": _TEXT},
        created_at=_NUMBER | {"description": "Unix seconds"},
        started_at=_MAYBE_NUMBER,
        finished_at=_MAYBE_NUMBER,
        deadline_at=_MAYBE_NUMBER | {"description": "the deadline that applies now"},
        expires_at=_MAYBE_NUMBER,
        queue_deadline_s=_MAYBE_NUMBER | {"description": "from submit to the first start"},
        run_deadline_s=_MAYBE_NUMBER | {"description": "from the first start to the end"},
        retried_from=_MAYBE_TEXT | {"description": "the job whose request this one repeats"},
        attempts=_list(_ANYTHING),
        usage=_MAYBE_OBJECT,
        usage_so_far=_MAYBE_OBJECT | {"description": "while `usage` is null"},
        status_code={"type": ["integer", "null"]},
        error=_MAYBE_OBJECT,
        links=_ANYTHING,
        position={"type": ["integer", "null"], "description": "while it is queued"},
        estimated_wait_s=_MAYBE_NUMBER | {"description": "null: unknown"},
        wait_reason=_TEXT | {"description": "if no worker is ready, or it has to run alone"},
        text=_TEXT | {"description": "the first choice so far"},
        choices=_list(_ANYTHING),
        result=_ANYTHING | {"description": "the whole answer, if it was not streamed"},
    ),
    "JobList": _object(
        "object data has_more next_cursor",
        object={"const": "list"},
        data=_list(_ref("Job")),
        has_more=_YES_NO,
        next_cursor=_MAYBE_TEXT,
    ),
    "DeadLetter": _object(
        "id object created_at what reason subject job_id job attempts replayable values",
        id=_TEXT,
        object={"const": "dead_letter"},
        created_at=_NUMBER | {"description": "Unix seconds"},
        what={"enum": list(KINDS)},
        reason=_TEXT,
        subject=_TEXT | {"description": "the job's id, or a key in Redis"},
        job_id=_MAYBE_TEXT,
        job=_object("", tenant=_TEXT, pool=_TEXT, model=_TEXT, endpoint=_TEXT),
        attempts=_list(_ANYTHING),
        replayable=_YES_NO | {"description": "its job's request is still kept"},
        values={"type": "object", "additionalProperties": _TEXT}
        | {"description": "what was set aside, 4 KiB of each value"},
    ),
    "DeadLetterList": _object(
        "object data has_more next_cursor",
        object={"const": "list"},
        data=_list(_ref("DeadLetter")),
        has_more=_YES_NO,
        next_cursor=_MAYBE_TEXT,
    ),
    "Replay": _object(
        "id object job_id retried_from tenant",
        id=_TEXT,
        object={"const": "dead_letter.replay"},
        job_id=_TEXT | {"description": "the new job"},
        retried_from=_TEXT,
        tenant=_TEXT,
    ),
    "Model": _object("id object", id=_TEXT, object={"const": "model"}, flotilla=_ANYTHING),
    "ModelList": _object("object data", object={"const": "list"}, data=_list(_ref("Model"))),
}

_BODIES = {path: row.request_schema for path, row in ENDPOINTS.items()} | {"/jobs": "JobRequest"}
_RESPONSES: dict[tuple[str, str], dict[str, str]] = {
    **{("post", path): {"200": row.response_schema} for path, row in ENDPOINTS.items()},
    ("get", "/v1/models"): {"200": "ModelList"},
    ("get", "/v1/models/{name}"): {"200": "Model"},
    ("post", "/jobs"): {"202": "Job"},
    ("get", "/jobs"): {"200": "JobList"},
    ("get", "/jobs/{job_id}"): {"200": "Job"},
    ("get", "/jobs/{job_id}/result"): {"202": "Job"},
    ("post", "/jobs/{job_id}/cancel"): {"200": "Job"},
    ("post", "/jobs/{job_id}/retry"): {"202": "Job"},
    ("get", "/admin/dead"): {"200": "DeadLetterList"},
    ("get", "/admin/dead/{letter_id}"): {"200": "DeadLetter"},
    ("post", "/admin/dead/{letter_id}/replay"): {"202": "Replay"},
}
_EVENT_STREAMS = {path for path, row in ENDPOINTS.items() if row.stream} | {
    "/jobs/{job_id}/events",
    "/jobs/{job_id}/stream",
}
_JSON = "application/json"
_CALL_HEADERS = {
    "Idempotency-Key": _TEXT
    | {
        "description": "requests with the same key and body are one job for 24 h; 1 to 255 visible "
        "ASCII characters"
    },
    "x-flotilla-on-disconnect": _TEXT | {"description": _ON_DISCONNECT},
    "x-flotilla-queue-deadline": _NUMBER | {"description": "seconds until it has to have started"},
    "x-flotilla-run-deadline": _NUMBER | {"description": "seconds from its first start to its end"},
}
_PREFER: Schema = {
    "name": "Prefer",
    "in": "header",
    "required": False,
    "schema": _TEXT
    | {
        "description": "`respond-async`: 202 with the job at once; `wait=N`: 202 if the answer is "
        "not complete after N seconds. The answer has `Preference-Applied`"
    },
}


def install(app: FastAPI, *, with_keys: bool) -> None:
    """Replace FastAPI's description of `app`. `with_keys`: requests need an API key."""

    def openapi() -> Schema:
        if app.openapi_schema is None:
            app.openapi_schema = _describe(app, with_keys=with_keys)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _describe(app: FastAPI, *, with_keys: bool) -> Schema:
    schema = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    job_request = JobRequest.model_json_schema()
    job_request["properties"]["lane"] = {"enum": [*CLIENT_LANES, None], "default": None}
    job_request["properties"]["body"] = _ref("ChatRequest")
    components = schema.setdefault("components", {})
    found = components.get("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        found.pop(name, None)
    components["schemas"] = found | _SCHEMAS | {"JobRequest": job_request}
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            _complete(operation, method, path)
            if path not in PUBLIC_PATHS:
                operation["security"] = [{"key": []}] if with_keys else [{"key": []}, {}]
    return schema


def _complete(operation: Schema, method: str, path: str) -> None:
    if method == "post" and path in _BODIES:
        content = {_JSON: {"schema": _ref(_BODIES[path])}}
        operation["requestBody"] = {"required": True, "content": content}
        operation.setdefault("parameters", []).extend(
            {"name": name, "in": "header", "required": False, "schema": header}
            for name, header in _CALL_HEADERS.items()
        )
    answers = operation["responses"]
    if method == "post" and path in ENDPOINTS:
        operation["parameters"].append(_PREFER)
        accepted = {"description": "The job, for a request with `Prefer`"}
        answers["202"] = accepted | {"content": {_JSON: {"schema": _ref("Job")}}}
    answers.pop(
        "422", None
    )  # wrong parameters are answered with 400, like all other invalid requests
    for status, name in _RESPONSES.get((method, path), {}).items():
        answer = answers.setdefault(status, {"description": "The job; there is no answer yet"})
        answer["content"] = {_JSON: {"schema": _ref(name)}}
    if path in _EVENT_STREAMS:
        content = answers["200"].setdefault("content", {})
        content["text/event-stream"] = {"schema": _TEXT}
        if path.endswith("/events"):
            content.pop(_JSON, None)
    error = {"description": "Error", "content": {_JSON: {"schema": _ref("Error")}}}
    answers["4XX"] = answers["5XX"] = error

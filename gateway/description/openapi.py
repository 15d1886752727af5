"""The OpenAPI description of the HTTP API: `/openapi.json`, shown by `/docs`.

FastAPI describes the routes and their parameters. Bodies are parsed and answered without FastAPI,
so each route names their schemas (`shows`, `takes`), which its API registers, and its errors, but
for those of all routes. Errors of vLLM are passed on with their own status: `4XX` and `5XX`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from gateway.description.api import Api
from gateway.description.common_schemas import COMMON_SCHEMAS
from gateway.description.schema import Schema, add_error, ref
from gateway.http.route_scopes import PUBLIC_PATHS, scopes_of
from shared.api.endpoint import ErrorStyle
from shared.api.error_shapes import error_style
from shared.job import errors
from shared.job.errors import FlotillaError

_JSON = "application/json"
_ERRORS = {
    ErrorStyle.OPENAI: "Error",
    ErrorStyle.RESPONSE: "Error",
    ErrorStyle.ANTHROPIC: "AnthropicError",
}
_EVERYWHERE = (
    errors.BadRequest,
    errors.UnknownHost,
    errors.MethodNotAllowed,
    errors.HeadersTimeout,
    errors.HeadersTooLarge,
    errors.TooManyConnections,
    errors.GatewayStopped,
)


def install(app: FastAPI, apis: Iterable[Api], *, with_keys: bool) -> None:
    """Replace FastAPI's description of `app`. `with_keys`: requests need an API key."""

    def openapi() -> Schema:
        if app.openapi_schema is None:
            app.openapi_schema = _describe(app, apis, with_keys=with_keys)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _describe(app: FastAPI, apis: Iterable[Api], *, with_keys: bool) -> Schema:
    schema = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        servers=[{"url": "."}],  # relative to this description: below the path of a proxy too
    )
    components = schema.setdefault("components", {})
    found = components.get("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        found.pop(name, None)
    components["schemas"] = found | COMMON_SCHEMAS
    for api in apis:
        components["schemas"] |= api.schemas
        for row in api.plain:
            if row.description:
                operations = schema["paths"].setdefault(row.path.replace(":path", ""), {})
                operations[row.method.lower()] = copy.deepcopy(dict(row.description))
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            _name_body(operation, components["schemas"])
            _complete(operation, method, path)
            if path not in PUBLIC_PATHS:
                operation["security"] = [{"key": []}] if with_keys else [{"key": []}, {}]
    return schema


def _name_body(operation: Schema, schemas: Schema) -> None:
    """Move the schema of a body that is a model to those with names."""
    for content in operation.get("requestBody", {}).get("content", {}).values():
        if title := content["schema"].get("title"):
            schemas[title] = content["schema"]
            content["schema"] = ref(title)


def _complete(operation: Schema, method: str, path: str) -> None:
    answers = operation["responses"]
    wrong = answers.get("422", {})
    wrong.pop("content", None)
    if wrong.get("description") == "Validation Error":  # FastAPI's; wrong parameters get a 400
        del answers["422"]
    for answer in answers.values():
        answer.setdefault("description", "The job; there is no answer yet")
        shown = answer.get("content", {}).get(_JSON, {})
        if name := shown.get("schema", {}).get("$ref"):
            shown["schema"] = {"$ref": name}  # without what FastAPI has put beside it
    for kind in _errors_of(operation, method, path):
        add_error(answers, kind)
    answers["4XX"] = answers["5XX"] = {"description": "Another error"}
    for status, answer in answers.items():
        if status >= "400":
            answer.setdefault("content", {_JSON: {"schema": ref(_ERRORS[error_style(path)])}})
    operation["responses"] = dict(sorted(answers.items()))


def _errors_of(operation: Schema, method: str, path: str) -> Iterator[type[FlotillaError]]:
    """The errors that follow from a route's method and path."""
    yield from _EVERYWHERE
    if method not in ("get", "head", "options"):
        yield from (errors.ForeignSite, errors.UnsupportedMediaType)
    if path not in PUBLIC_PATHS:
        yield from (errors.Unauthorized, errors.RedisUnavailable)
    if scopes_of(method.upper(), path):
        yield errors.MissingScope
    if "requestBody" in operation:
        yield from (errors.BodyTimeout, errors.BodyTooLarge)
        yield from (errors.TooManyBodies, errors.UnsupportedCoding)
    if "{" in path:
        yield errors.NotFound

"""The OpenAPI description of the HTTP API: `/openapi.json`, shown by `/docs`.

FastAPI describes the routes and their parameters. Bodies are parsed and answered without FastAPI,
so each route names their schemas (`shows`, `takes`), which its API registers.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from gateway.apis import error_answers
from gateway.core.api import Api
from gateway.core.core_schemas import CORE_SCHEMAS
from gateway.core.schema import Schema, ref
from gateway.http.middleware import PUBLIC_PATHS
from shared.api.endpoint import ErrorStyle
from shared.api.error_shapes import error_style

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
    components = schema.setdefault("components", {})
    found = components.get("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        found.pop(name, None)
    components["schemas"] = found | CORE_SCHEMAS
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
    # Wrong parameters are answered with 400, like all other invalid requests.
    answers.pop("422", None)
    for answer in answers.values():
        answer.setdefault("description", "The job; there is no answer yet")
        shown = answer.get("content", {}).get(_JSON, {})
        if name := shown.get("schema", {}).get("$ref"):
            shown["schema"] = {"$ref": name}  # without what FastAPI has found in its place
    content = {_JSON: {"schema": ref(_ERRORS[error_style(path)])}}
    errors = error_answers.descriptions(method, path, public=path in PUBLIC_PATHS)
    for status, description in errors.items():
        answers.setdefault(status, {"description": description, "content": content})
    answers["4XX"] = answers["5XX"] = {"description": "Another error", "content": content}

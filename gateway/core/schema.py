"""Parts of JSON schemas, for the API's description (`gateway/apis/openapi.py`)."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
WHOLE: Schema = {"type": "integer"}
YES_NO: Schema = {"type": "boolean"}
ANYTHING: Schema = {"type": "object"}
MAYBE_TEXT: Schema = {"type": ["string", "null"]}
MAYBE_NUMBER: Schema = {"type": ["number", "null"]}
MAYBE_OBJECT: Schema = {"type": ["object", "null"]}


def obj(required: str, /, **properties: Schema) -> Schema:
    """An object that may have other properties, too. `required`: names with spaces between."""
    return {"type": "object", "required": required.split(), "properties": properties}


def array(items: Schema) -> Schema:
    """A list of these."""
    return {"type": "array", "items": items}


def ref(name: str) -> Schema:
    """The schema of this name in the description."""
    return {"$ref": f"#/components/schemas/{name}"}


def shows(name: str, status: int = 200, *, events: bool = False) -> Schema:
    """A route's `openapi_extra`: its answer has the schema of this name, or none if it is empty.

    `events`: or it is server-sent events.
    """
    content = {"application/json": {"schema": ref(name)}} if name else {}
    if events:
        content["text/event-stream"] = {"schema": TEXT}
    return {"responses": {str(status): {"content": content}}}


def takes(schema: Schema, *, required: bool = True) -> Schema:
    """A route's `openapi_extra`: its body, which is read without FastAPI."""
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": required, "content": content}}

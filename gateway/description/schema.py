"""Parts of JSON schemas, for the API's description (`gateway/description/openapi.py`)."""

from __future__ import annotations

from typing import Any

from shared.job.errors import FlotillaError

Schema = dict[str, Any]
Kinds = tuple[type[FlotillaError], ...]

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


def shows(name: str, status: int = 200, *, events: bool = False, errors: Kinds = ()) -> Schema:
    """A route's `openapi_extra`: its answer has the schema of this name, or none if it is empty.

    `events`: or it is server-sent events. `errors`: those of this route, as for `errors_in`.
    """
    content = {"application/json": {"schema": ref(name)}} if name else {}
    if events:
        content["text/event-stream"] = {"schema": TEXT}
    return {"responses": {str(status): {"content": content}, **errors_in(*errors)}}


def errors_in(*kinds: type[FlotillaError]) -> dict[int | str, dict[str, Any]]:
    """The errors of a route or router, for its `responses`, beside those that `openapi.py` adds."""
    answers: dict[int | str, dict[str, Any]] = {}
    for kind in kinds:
        add_error(answers, kind)
    return answers


def add_error(answers: dict[Any, dict[str, Any]], kind: type[FlotillaError]) -> None:
    """Add an error with its code to the answers of an operation, unless it is there."""
    about = (kind.__doc__ or "").partition("\n")[0]  # none with PYTHONOPTIMIZE=2
    line = f"`{kind.code or kind.type}`: {about}"
    answer = answers.setdefault(str(kind.status), {"description": line})
    if line not in answer["description"]:
        answer["description"] += f"\n\n{line}"


def takes(schema: Schema, *, required: bool = True) -> Schema:
    """A route's `openapi_extra`: its body, which is read without FastAPI."""
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": required, "content": content}}

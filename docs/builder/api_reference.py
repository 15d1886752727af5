"""The pages of all calls and of their bodies, from the API's description (`/openapi.json`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from docs.builder.tables import plain, table
from gateway.app import create_app
from gateway.gateway_settings import GatewaySettings

Schema = Mapping[str, Any]

_CALLS = """\
# Every call

Made of the gateway's own description, `GET /openapi.json`; `/docs` of a running gateway shows the
same with a form for each call. The bodies have [a page of their own](schemas.md), the errors
[a table](index.md#errors). How the calls belong together: [the API](index.md).
"""
_SCHEMAS = """\
# Bodies

The fields that Flotilla reads or writes. The bodies of inference calls are vLLM's: fields that are
not listed here reach the engine as they are.
"""
_TITLES = {
    "OpenAI": "Inference: OpenAI's, Anthropic's and vLLM's calls",
    "jobs": "Jobs",
    "operators": "Operators",
    "health": "Health",
    "fleet": "The fleet",
    "TorchServe": "TorchServe's calls",
}
_BODIES = "schemas.md"


async def description() -> Schema:
    """The description that a gateway without API keys serves."""
    transport = httpx.ASGITransport(create_app(GatewaySettings()))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.get("/openapi.json")
        answer.raise_for_status()
        return answer.json()  # type: ignore[no-any-return]


def calls_page(description: Schema) -> str:
    """All calls by their tags, in Markdown."""
    groups: dict[str, list[str]] = {}
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            tag = operation.get("tags", ["other"])[0]
            groups.setdefault(tag, []).append(_call(method, path, operation))
    order = [*_TITLES, *(tag for tag in groups if tag not in _TITLES)]
    parts = [_CALLS]
    for tag in order:
        if tag in groups:
            parts += [f"## {_TITLES.get(tag, tag.capitalize())}\n", *groups[tag]]
    return "\n".join(parts)


def schemas_page(description: Schema) -> str:
    """All named bodies with their fields, in Markdown."""
    parts = [_SCHEMAS]
    for name, schema in sorted(description["components"]["schemas"].items()):
        parts.append(f"## {name}\n")
        if schema.get("description"):
            parts.append(plain(f"{schema['description']}\n"))
        if fields := list(_fields(schema)):
            parts.append(table(("field", "type", "meaning"), fields))
        else:
            parts.append(f"{_type(schema, '')}\n")
    return "\n".join(parts)


def _call(method: str, path: str, operation: Schema) -> str:
    summary, text = operation.get("summary", ""), operation.get("description", "")
    lines = [f"### `{method.upper()} {path}`", ""]
    lines += [plain(_sentence(text or summary)), ""]
    parameters = [
        (
            f"`{each['name']}`" + (" (required)" if each.get("required") else ""),
            each["in"],
            _type(each["schema"], _BODIES),
            each.get("description", "") or each["schema"].get("description", ""),
        )
        for each in operation.get("parameters", ())
    ]
    if parameters:
        lines.append(table(("parameter", "in", "type", "meaning"), parameters))
    if "requestBody" in operation:
        lines += ["Body: " + _contents(operation["requestBody"]["content"]), ""]
    answers, codes = [], []
    for status, answer in operation["responses"].items():
        if status[0] in "23":
            answers.append(f"{status} {_contents(answer.get('content', {}))}".strip())
        elif status not in ("4XX", "5XX"):
            names = re.findall(r"`(\w+)`:", answer.get("description", ""))
            codes += [f"{status} `{name}`" for name in names] or [status]
    lines += [f"Answers: {'; '.join(answers)}", ""]
    if codes:
        lines += [f"[Errors](index.md#errors): {', '.join(codes)}", ""]
    return "\n".join(lines)


def _contents(content: Schema) -> str:
    """The media types of a body, each with its schema."""
    return ", ".join(
        f"{_type(body.get('schema', {}), _BODIES)} (`{media}`)" for media, body in content.items()
    )


def _fields(schema: Schema, prefix: str = "") -> Iterator[tuple[str, ...]]:
    """(field, type, description) of an object's fields, those of objects in it with a dot."""
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        own = f"`{prefix}{name}`" + (" (required)" if name in required else "")
        yield own, _type(field, ""), str(field.get("description", ""))
        inner, mark = field, "."
        if field.get("type") == "array":
            inner, mark = field.get("items", {}), "[]."
        yield from _fields(inner, f"{prefix}{name}{mark}")


def _type(schema: Schema, page: str) -> str:
    """A type in words; a named body is a link to its section on `page`."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f"[{name}]({page}#{name.lower()})"
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join("null" if value is None else f"`{value}`" for value in schema["enum"])
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(_type(each, page) for each in schema[key]))
    kind = schema.get("type", "anything")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array" and schema.get("items"):
        return f"list of {_type(schema['items'], page)}"
    default = schema.get("default")
    return str(kind) if default is None else f"{kind}, by default {default}"


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", ":", "`")) else f"{text}."

"""The pages that are made of the code: settings, calls, bodies, errors, commands."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from typing import Any

import httpx
import typer
from jsonschema_markdown import generate
from loguru import logger
from pydantic import BaseModel
from typer.cli import get_docs_for_click
from typer.main import get_command

from gateway.app import create_app
from gateway.cli.main import app as command
from gateway.gateway_settings import GatewaySettings
from shared.fleet.fleet_settings import FleetSettings
from shared.job.errors import FlotillaError
from shared.platform.settings import PREFIX, ProcessSettings, declared

logger.disable("jsonschema_markdown")  # of parts of a schema that it leaves out

_SETTINGS = """\
Every setting is a variable, a key of [flotilla.yaml](../../../shared/fleet/MODELS.md), and for some
commands a flag. The first of these that is set holds: flag, variable, file
`/run/secrets/flotilla_<name>`, flotilla.yaml, default. A name that is no setting stops the process
with a line that names it and the nearest one. `flotilla config check` checks all of them,
`flotilla config show --origin` prints where each value comes from.
"""
_CALLS = """\
Made of the gateway's own description, `GET /openapi.json`; `/docs` of a running gateway shows the
same with a form for each call. How the calls belong together: [the API](index.md).
"""
_ERRORS = """\
Errors of vLLM are passed on byte for byte; these are [Flotilla's own](index.md#errors).
"""
_COMMANDS = """\
What `flotilla --help` prints; each command has `-h`. Commands that ask a gateway find it by
`--url`, else by `FLOTILLA_URL`, else by the `flotilla up` that runs in this folder. `--json` prints
what the API answers, for scripts.
"""


async def pages() -> dict[str, str]:
    """Page -> its Markdown."""
    transport = httpx.ASGITransport(create_app(GatewaySettings()))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        description = (await client.get("/openapi.json")).raise_for_status().json()
    return {
        "operate/settings.md": settings_page(),
        "api/reference.md": calls_page(description),
        "api/schemas.md": schemas_page(description),
        "api/errors.md": errors_page(),
        "command-line.md": commands_page(command),
    }


def settings_page() -> str:
    """All settings by the classes that declare them, and the keys of a pool in flotilla.yaml."""
    return "\n".join(["# Settings", "", _SETTINGS, *map(_settings, declaring())])


def declaring() -> list[type[BaseModel]]:
    """The classes that declare settings: first those that several processes share."""
    bases = (each for kind in declared() for each in reversed(kind.__mro__))
    found = dict.fromkeys((ProcessSettings, FleetSettings, *bases))
    return [
        each for each in found if issubclass(each, BaseModel) and own(each) & {*each.model_fields}
    ]


def own(group: type[BaseModel]) -> set[str]:
    """The names that a class declares itself."""
    return set(inspect.get_annotations(group))


def _settings(group: type[BaseModel]) -> str:
    """A table of the settings that a class declares itself, by the names of their variables."""
    schema = group.model_json_schema()
    schema["title"] = group.__name__.removesuffix("Settings")
    schema["properties"] = {
        f"{PREFIX}{name.upper()}": field
        for name, field in schema["properties"].items()
        if name in own(group)
    }
    if "$ref" not in json.dumps(schema["properties"]):  # those of other classes' settings
        schema.pop("$defs", None)
    return _tables(schema, "#")


def _tables(schema: dict[str, Any], deeper: str = "") -> str:
    text = generate(schema, footer=False, hide_empty_columns=True)
    text = re.sub(r"^#+ Type: `object.*\n\n", "", text, flags=re.MULTILINE)
    return re.sub(r"^(?=#)", deeper, text, flags=re.MULTILINE)


def schemas_page(description: Mapping[str, Any]) -> str:
    """All bodies that have a name."""
    text = json.dumps(description["components"]["schemas"])
    definitions = json.loads(text.replace("#/components/schemas/", "#/$defs/"))
    about = "Bodies of inference calls are vLLM's: further fields reach the engine as they are."
    return _tables({"title": "Bodies", "description": about, "$defs": definitions})


def errors_page() -> str:
    """Flotilla's own errors by their statuses."""
    lines = ["# Errors", "", _ERRORS, "| status | code | when |", "|---|---|---|"]
    for kind in sorted(_errors(FlotillaError), key=lambda kind: kind.status):
        code = f"`{kind.code}`" if kind.code else "null"
        lines.append(f"| {kind.status} | {code} | {(kind.__doc__ or '').partition(chr(10))[0]} |")
    return "\n".join(lines)


def _errors(base: type[FlotillaError]) -> list[type[FlotillaError]]:
    return [kind for sub in base.__subclasses__() for kind in (sub, *_errors(sub))]


def calls_page(description: Mapping[str, Any]) -> str:
    """All calls by their tags: parameters, body, answers."""
    groups: dict[str, list[str]] = {}
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            tag = operation.get("tags", ["other"])[0]
            groups.setdefault(tag, []).append(_call(f"{method.upper()} {path}", operation))
    parts = ["\n".join([f"## {tag[0].upper()}{tag[1:]}\n", *groups[tag]]) for tag in groups]
    return "\n".join(["# Every call", "", _CALLS, *parts])


def _call(name: str, operation: Mapping[str, Any]) -> str:
    text = operation.get("description") or operation.get("summary", "")
    lines = [f"### `{name}`", "", _plain(text), ""]
    for each in operation.get("parameters", ()):
        about = each.get("description") or each["schema"].get("description", "")
        needed = ", required" if each.get("required") else ""
        lines.append(f"- `{each['name']}` ({each['in']}{needed}) {_plain(about)}")
    if "requestBody" in operation:
        lines.append(f"- body: {_bodies(operation['requestBody'])}")
    errors = []
    for status, answer in operation["responses"].items():
        if status < "4":
            lines.append(f"- {status}: {_bodies(answer)}")
        else:
            codes = re.findall(r"`\w+`(?=:)", answer.get("description", ""))
            errors.append(" ".join([status, *codes]))
    return "\n".join([*lines, f"- [errors](errors.md): {', '.join(errors)}", ""])


def _bodies(content: Mapping[str, Any]) -> str:
    """The media types of a body, and links to the schemas in it."""
    names = dict.fromkeys(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(content)))
    links = [f"[{name}](schemas.md#{name.lower()})" for name in names]
    return ", ".join([*links, *(f"`{media}`" for media in content.get("content", ()))])


def commands_page(app: typer.Typer) -> str:
    """Every command of `flotilla` with its help."""
    root = get_command(app)
    text = get_docs_for_click(obj=root, ctx=typer.Context(root), name="flotilla")
    return _plain(text.replace("\n", f"\n\n{_COMMANDS}", 1))


def _plain(text: str) -> str:
    """The text with `<name>` shown as it is, where it would be an HTML tag."""
    parts = re.split(r"(```.*?```|`[^`\n]*`)", text.strip(), flags=re.DOTALL)
    parts[::2] = [re.sub(r"<(?=[a-zA-Z/])", "&lt;", part) for part in parts[::2]]
    return "".join(parts)

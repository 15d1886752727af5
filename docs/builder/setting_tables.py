"""The page of all settings, from the classes that declare them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from pydantic import BaseModel

from docs.builder.tables import table
from gateway.listen_settings import ListenSettings
from shared.fleet.fleet_settings import FleetSettings
from shared.fleet.pool import AutoscaleEntry, PoolDefaults, PoolEntry
from shared.fleet.pool_settings import PoolSettings, WorkerPlaceSettings
from shared.platform.settings import PREFIX, ProcessSettings, declared

TITLES: dict[type[BaseModel], str] = {
    ProcessSettings: "Every process",
    FleetSettings: "Every process of a fleet",
    PoolDefaults: "All pools",
    ListenSettings: "Gateway: address and keys",
    WorkerPlaceSettings: "Worker: address and end",
}
"""Of classes that are not named like the page's heading."""
_UNITS = {"_s": "seconds", "_ms": "milliseconds", "_us": "microseconds", "_bytes": "bytes"}
_MIB = 1 << 20
_INTRODUCTION = """\
# Settings

Every setting is a variable, a key of [flotilla.yaml](models.md), and for some commands a flag. The
first of these that is set holds: flag, variable, file `/run/secrets/flotilla_<name>`,
flotilla.yaml, default. A name that is no setting stops the process with a line that names it and
the nearest one. `flotilla config check` checks all of them, `flotilla config show --origin` prints
where each value comes from. This page is made of their declarations: each process has a class of
settings, with those that it shares with others.
"""

_POOLS = """\
## Keys of a pool

Under `pools` in flotilla.yaml ([examples](models.md)). A key that is a setting of all pools too is
as that where it is not set.
"""


class Row(NamedTuple):
    """One setting."""

    name: str
    values: str
    default: str
    meaning: str


def page() -> str:
    """The page, in Markdown."""
    parts = [_INTRODUCTION]
    for group in groups():
        title = TITLES.get(group) or group.__name__.removesuffix("Settings")
        parts.append(f"## {title}\n\n{group.__doc__}\n")
        parts.append(_table(rows(group, group.__annotations__), "variable", PREFIX))
    parts.append(_POOLS)
    parts.append(_table(rows(PoolEntry), "key", ""))
    parts.append("## Keys of a pool's `autoscale`\n\nEmpty: as the setting `autoscale_*`.\n")
    parts.append(_table(rows(AutoscaleEntry), "key", ""))
    return "\n".join(parts)


def groups() -> list[type[BaseModel]]:
    """The classes that declare settings: first those that several processes share."""
    found = dict.fromkeys(
        (
            ProcessSettings,
            FleetSettings,
            *(e for kind in declared() for e in reversed(kind.__mro__)),
        )
    )
    return [
        each
        for each in found
        if issubclass(each, BaseModel)
        and any(name in each.model_fields for name in vars(each).get("__annotations__", ()))
    ]


def rows(group: type[BaseModel], names: Iterable[str] = ()) -> Iterator[Row]:
    """The settings of a group; with `names`, only these."""
    schema = group.model_json_schema(mode="validation")
    for name, field in group.model_fields.items():
        if names and name not in names:
            continue
        values = schema["properties"][name]
        meaning = field.description or _inherited(group, name)
        yield Row(name, _values(name, values), _default(name, field.default), meaning)


def _inherited(group: type[BaseModel], name: str) -> str:
    """What a key of a pool's `autoscale` means: the same as the setting for all pools."""
    setting = f"autoscale_{name}"
    return f"`{PREFIX}{setting.upper()}`: {PoolSettings.model_fields[setting].description}"


def _table(settings: Iterator[Row], heading: str, prefix: str) -> str:
    rows = ((f"`{prefix}{row.name.upper() if prefix else row.name}`", *row[1:]) for row in settings)
    return table((heading, "values", "default", "meaning"), rows)


def _values(name: str, schema: dict[str, Any]) -> str:
    """What values a setting takes, in words."""
    main = next(each for each in schema.get("anyOf", [schema]) if each.get("type") != "null")
    if "enum" in main:
        return ", ".join(f"`{value}`" for value in main["enum"])
    kinds = {
        "integer": "whole number",
        "number": "number",
        "boolean": "`0`, `1`",
        "array": "list",
        "object": "mapping",
    }
    kind = "mapping" if "$ref" in main else kinds.get(main.get("type", ""), "text")
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")
    limits = [
        f"{words} {_number(main[key])}"
        for key, words in (
            ("exclusiveMinimum", "more than"),
            ("minimum", "from"),
            ("maximum", "to"),
        )
        if key in main
    ]
    return ", ".join(filter(None, (unit if "number" in kind and unit else kind, " ".join(limits))))


def _number(value: float) -> str:
    return f"{value:,}".removesuffix(".0")


def _default(name: str, value: Any) -> str:
    if value is None or value in ("", ()) or not isinstance(value, str | int | float | bool):
        return ""
    if isinstance(value, bool):
        return f"`{int(value)}`"
    text = f"`{value}`" if isinstance(value, str) else f"`{str(value).removesuffix('.0')}`"
    if name.endswith("_bytes") and isinstance(value, int) and value >= _MIB:
        text += f" ({value / _MIB:g} MiB)"
    return text

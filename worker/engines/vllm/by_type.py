"""Validates an item that may be one of many types by its `type` only.

For pydantic an item of `/v1/responses` is a union of sixty types. It tries them all, although
nearly each accepts one `type`: 60 microseconds for each item. With its own tagged union it tries
those that accept the item's `type`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_FIELD = "type"
_OTHER = ""
"""Tag of what has a `type` that no choice names, or can't have one, as a text."""
_MISSING = "\0"
"""Tag of what has no `type`, or null."""
_FEWEST = 3
"""Choices of a union for which that is worth it."""


class _Choice(NamedTuple):
    schema: Any
    names: frozenset[str] | None
    """What it accepts as `type`; None if that is not known."""
    required: bool = True


def by_type(union: dict[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """A schema of pydantic's core that accepts what this union does.

    `definitions`: schemas by their `ref`.
    """
    choices = list(_choices(union, definitions))
    names = frozenset[str]().union(*(choice.names or () for choice in choices))
    if len(choices) < _FEWEST or not names or union.get("mode") == "left_to_right":
        return union
    groups = {
        name: [each.schema for each in choices if each.names is None or name in each.names]
        for name in names
    }
    groups[_OTHER] = [each.schema for each in choices if each.names is None]
    groups[_MISSING] = [each.schema for each in choices if each.names is None or not each.required]
    groups = {tag: group for tag, group in groups.items() if group}

    def tag(value: Any) -> str:
        given = (value.get if isinstance(value, dict) else _attribute_of(value))(_FIELD, _MISSING)
        if given is None:
            return _MISSING
        return given if isinstance(given, str) and given in groups else _OTHER

    return {
        "type": "tagged-union",
        "discriminator": tag,
        "choices": {name: {**union, "choices": group} for name, group in groups.items()},
        "custom_error_type": "unknown_type",
        "custom_error_message": "no such `type` is known here",
    }


def _attribute_of(value: Any) -> Any:
    return lambda name, default: getattr(value, name, default)


def _choices(union: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterator[_Choice]:
    for each in union["choices"]:
        schema = each[0] if isinstance(each, tuple) else each
        if schema["type"] == "union" and schema.get("mode") == union.get("mode"):
            yield from _choices(schema, definitions)
        else:
            yield _Choice(each, *_accepted(schema, definitions))


def _accepted(
    schema: Mapping[str, Any], definitions: Mapping[str, Any]
) -> tuple[frozenset[str] | None, bool]:
    """What a choice accepts as `type`, None if unknown, and whether it must have one."""
    while schema["type"] in _AROUND:
        ref = schema.get("schema_ref")
        schema = definitions[ref] if ref else schema["schema"]
    field = schema.get("fields", {}).get(_FIELD) if schema["type"] in _WITH_FIELDS else None
    if field is None or "validation_alias" in field:
        return None, False
    inner = field["schema"]
    required = field.get("required", schema.get("total", True))
    while inner["type"] in _OPTIONAL:
        inner, required = inner["schema"], False
    names = inner.get("expected", ())
    if inner["type"] != "literal" or not all(isinstance(name, str) for name in names):
        return None, False
    return frozenset(names), required


_AROUND = ("definition-ref", "model", "function-after")
_WITH_FIELDS = ("typed-dict", "model-fields")
_OPTIONAL = ("nullable", "default")

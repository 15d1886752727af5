"""Bounds what vLLM's validation of a request's body does with what is wrong in it.

Pydantic collects all errors: a list of a thousand wrong items, each of which may be one of thirty
types, has 233,000 of them, which take seconds and gigabytes. With its own `fail_fast` the first
wrong item ends the list.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import SchemaValidator

from shared.platform.fast_paths import FastPath

_FIRST_ITEM = FastPath("validation up to a list's first wrong item")
_LISTS = frozenset({"list", "tuple", "set", "frozenset"})
_NO_SCHEMAS = frozenset({"metadata", "serialization", "default"})


def stop_at_first_errors(app: Any) -> frozenset[str]:
    """Have the routes of a FastAPI application do so; returns their paths."""
    if not _FIRST_ITEM.enabled():
        return frozenset()
    return frozenset(route.path for route in app.routes if _has_body(route) and _stop(route))


def validators(app: Any) -> dict[str, list[Any]]:
    """What validates the bodies of each path."""
    return {route.path: route.dependant.body_params for route in app.routes if _has_body(route)}


def _has_body(route: Any) -> bool:
    return bool(getattr(getattr(route, "dependant", None), "body_params", ()))


def _stop(route: Any) -> bool:
    try:
        for field in route.dependant.body_params:
            adapter = field._type_adapter  # noqa: SLF001
            # Without the validators of models that were made before, which collect all errors.
            schema = first_errors_only(adapter.core_schema)
            adapter.validator = SchemaValidator(schema, _use_prebuilt=False)
    except Exception as error:
        _FIRST_ITEM.disable(f"{route.path}: {error!r}")
        return False
    return True


def first_errors_only(schema: Any) -> Any:
    """A copy of a schema of pydantic's core in which each list ends at its first wrong item."""
    if isinstance(schema, list | tuple):
        return type(schema)(map(first_errors_only, schema)) if type(schema) in _PLAIN else schema
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    if not isinstance(kind, str):  # fields, by name
        return {name: first_errors_only(value) for name, value in schema.items()}
    copy = {
        name: value if name in _NO_SCHEMAS else first_errors_only(value)
        for name, value in schema.items()
    }
    if kind in _LISTS:
        copy["fail_fast"] = True
    return copy


_PLAIN = (list, tuple)

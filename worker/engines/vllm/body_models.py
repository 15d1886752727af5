"""Makes vLLM's validation of a request's body cheap.

Pydantic collects all errors: a list of a thousand wrong items, each of which may be one of thirty
types, has 233,000 of them, which take seconds and gigabytes. With its own `fail_fast` the first
wrong item ends the list. It also tries each type of a union; here only those that the value's
`type` fits (`by_type.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_core import SchemaValidator

from shared.platform.fast_paths import FastPath
from worker.engines.vllm.by_type import by_type

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
            schema = cheap(adapter.core_schema)
            adapter.validator = SchemaValidator(schema, _use_prebuilt=False)
    except Exception as error:
        _FIRST_ITEM.disable(f"{route.path}: {error!r}")
        return False
    return True


def cheap(schema: Any) -> Any:
    """A copy of a schema of pydantic's core that accepts the same.

    In it each list ends at its first wrong item, and unions are tried by `type`.
    """
    return _cheap(schema, {each["ref"]: each for each in _definitions(schema)})


def _definitions(schema: Any) -> Iterator[Any]:
    if isinstance(schema, dict):
        if schema.get("type") == "definitions":
            yield from schema["definitions"]
        for name, value in schema.items():
            if name not in _NO_SCHEMAS:
                yield from _definitions(value)
    elif type(schema) in _PLAIN:
        for each in schema:
            yield from _definitions(each)


def _cheap(schema: Any, definitions: Mapping[str, Any]) -> Any:
    if isinstance(schema, list | tuple):
        if type(schema) not in _PLAIN:
            return schema
        return type(schema)(_cheap(each, definitions) for each in schema)
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    if not isinstance(kind, str):  # fields, by name
        return {name: _cheap(value, definitions) for name, value in schema.items()}
    copy = {
        name: value if name in _NO_SCHEMAS else _cheap(value, definitions)
        for name, value in schema.items()
    }
    if kind in _LISTS:
        copy["fail_fast"] = True
    return by_type(copy, definitions) if kind == "union" else copy


_PLAIN = (list, tuple)

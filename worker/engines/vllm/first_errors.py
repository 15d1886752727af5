"""Has vLLM's validation of a body end at a list's first wrong element.

Pydantic collects all errors: a list of a thousand wrong items, each of which may be one of sixty
types, has 233,000 of them, which take seconds and gigabytes on the event loop.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import SchemaValidator

_LISTS = frozenset({"list", "tuple", "set", "frozenset"})
_NO_SCHEMAS = frozenset({"metadata", "serialization", "default"})


def install(app: Any) -> None:
    """Change the validators of a FastAPI application's bodies, before its first request."""
    for route in app.routes:
        for field in getattr(getattr(route, "dependant", None), "body_params", ()):
            adapter = field._type_adapter  # noqa: SLF001
            # Without the validators of models that were made before, which collect all errors.
            adapter.validator = SchemaValidator(fail_fast(adapter.core_schema), _use_prebuilt=False)


def fail_fast(schema: Any) -> Any:
    """A copy of a schema of pydantic's core in which each list ends at its first wrong element."""
    if type(schema) is list or type(schema) is tuple:
        return type(schema)(map(fail_fast, schema))
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    if not isinstance(kind, str):  # fields, by name
        return {name: fail_fast(value) for name, value in schema.items()}
    copy = {
        name: value if name in _NO_SCHEMAS else fail_fast(value) for name, value in schema.items()
    }
    if kind in _LISTS:
        copy["fail_fast"] = True
    return copy

"""Errors of fields, in the words of JSON: which field, what it must be, and what was sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from shared.job.errors import BadRequest

_MOST_CHARS = 64
_Facts = Mapping[str, Any]
_RULES: Mapping[str, Callable[[_Facts], str]] = {
    "bool_type": lambda _: "be true or false",
    "bool_parsing": lambda _: "be true or false",
    "dict_type": lambda _: "be an object",
    "model_type": lambda _: "be an object",
    "model_attributes_type": lambda _: "be an object",
    "enum": lambda facts: f"be {facts['expected']}",
    "finite_number": lambda _: "be a finite number",
    "float_type": lambda _: "be a number",
    "float_parsing": lambda _: "be a number",
    "greater_than": lambda facts: f"be above {facts['gt']}",
    "greater_than_equal": lambda facts: f"be at least {facts['ge']}",
    "int_type": lambda _: "be an integer",
    "int_from_float": lambda _: "be an integer",
    "int_parsing": lambda _: "be an integer",
    "int_parsing_size": lambda _: "be a smaller integer",
    "less_than": lambda facts: f"be below {facts['lt']}",
    "less_than_equal": lambda facts: f"be at most {facts['le']}",
    "list_type": lambda _: "be a list",
    "literal_error": lambda facts: f"be {facts['expected']}",
    "string_pattern_mismatch": lambda facts: f"match the pattern {facts['pattern']}",
    "string_too_long": lambda facts: f"have at most {facts['max_length']} characters",
    "string_too_short": lambda facts: f"have at least {facts['min_length']} characters",
    "string_type": lambda _: "be a string",
    "too_long": lambda facts: f"have at most {facts['max_length']} members",
    "too_short": lambda facts: f"have at least {facts['min_length']} members",
}
"""What a field must do, by the type of pydantic's error and its facts."""


def sent(value: Any) -> str:
    """What a client has sent, as JSON; of a list or an object only that it is one."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, str):
        value = value if len(value) <= _MOST_CHARS else f"{value[:_MOST_CHARS]}..."
    return json.dumps(value, ensure_ascii=False, default=str)


def wrong_field(error: ValidationError | RequestValidationError, known: str = "") -> BadRequest:
    """The error for the first field that is wrong. `known`: the names of all fields."""
    first = error.errors()[0]
    place = first["loc"][1:] if isinstance(error, RequestValidationError) else first["loc"]
    param = ".".join(map(str, place))[:200]
    kind, value = first["type"], first["input"]
    if kind == "missing":
        message = f"`{param}` is missing."
    elif kind == "extra_forbidden":
        message = f"There is no field `{param}`" + (f"; known: {known}." if known else ".")
    elif kind in _RULES:
        message = f"`{param}` must {_RULES[kind](first.get('ctx', {}))}, not {sent(value)}."
    else:  # a rule of our own
        message = f"`{param}`: {first['msg'].removeprefix('Value error, ')}"
    return BadRequest(message, param or None)

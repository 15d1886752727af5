"""Errors of fields, in the words of JSON: which field, what it must be, and what was sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from shared.job.errors import BadRequest

_MOST_CHARS = 64
_RULES: Mapping[str, str] = {
    "bool_type": "be true or false",
    "bool_parsing": "be true or false",
    "dict_type": "be an object",
    "model_type": "be an object",
    "model_attributes_type": "be an object",
    "enum": "be {expected}",
    "finite_number": "be a finite number",
    "float_type": "be a number",
    "float_parsing": "be a number",
    "greater_than": "be above {gt}",
    "greater_than_equal": "be at least {ge}",
    "int_type": "be an integer",
    "int_from_float": "be an integer",
    "int_parsing": "be an integer",
    "int_parsing_size": "be a smaller integer",
    "less_than": "be below {lt}",
    "less_than_equal": "be at most {le}",
    "list_type": "be a list",
    "literal_error": "be {expected}",
    "string_pattern_mismatch": "match the pattern {pattern}",
    "string_too_long": "have at most {max_length} characters",
    "string_too_short": "have at least {min_length} characters",
    "string_type": "be a string",
    "too_long": "have at most {max_length} members",
    "too_short": "have at least {min_length} members",
}
"""What a field must do, by the type of pydantic's error; in braces what the error says of it."""


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
        rule = _RULES[kind].format_map(first.get("ctx", {}))
        message = f"`{param}` must {rule}, not {sent(value)}."
    else:  # a rule of our own
        message = f"`{param}`: {first['msg'].removeprefix('Value error, ')}"
    return BadRequest(message, param or None)

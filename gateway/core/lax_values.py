"""Texts and floats where a body should have a boolean or an integer: `"stream": "true"`.

vLLM takes some of them, as pydantic does. What the gateway and the worker read of a body is written
as the value it stands for, before either looks at it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from types import NoneType
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gateway.core.new_call import Wrapped
from shared.api.endpoint import BodyKind

_SWITCHES, _NUMBERS = {bool, NoneType}, {int, NoneType}
_INTEGER: TypeAdapter[int | None] = TypeAdapter(int | None)
_KINDS: Mapping[str, TypeAdapter[Any]] = {
    "stream": TypeAdapter(bool | None),
    "n": _INTEGER,
    "max_tokens": _INTEGER,
    "max_completion_tokens": _INTEGER,
    "max_output_tokens": _INTEGER,
}


def with_plain_values(call: Wrapped) -> Wrapped:
    """The call with plain values; what stands for none is left to vLLM, but for `stream`."""
    get = call.fields.get
    if (  # the usual case
        type(get("stream")) in _SWITCHES
        and type(get("max_tokens")) in _NUMBERS
        and type(get("n")) in _NUMBERS
        and type(get("max_completion_tokens")) in _NUMBERS
        and type(get("max_output_tokens")) in _NUMBERS
    ) or call.endpoint.body is not BodyKind.JSON:
        return call
    fields = dict(call.fields)
    for name, kind in _KINDS.items():
        if name in fields and (name != "stream" or call.endpoint.stream):
            with contextlib.suppress(ValidationError):
                fields[name] = kind.validate_python(fields[name])
    return call._replace(fields=fields, body=json.dumps(fields, ensure_ascii=False).encode())

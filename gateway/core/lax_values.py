"""Texts and floats where a body should have a boolean or an integer: `"n": "5"`, `"stream": 1.0`.

vLLM takes them as pydantic does. What the gateway and the worker read of a body is written as the
value it stands for, before either looks at it; so every limit and estimate holds for it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gateway.core.new_call import Wrapped
from shared.api.endpoint import BodyKind

_KINDS: Mapping[str, type] = {
    **dict.fromkeys(("stream", "echo", "background", "store"), bool),
    **dict.fromkeys(("n", "best_of", "logprobs", "top_logprobs", "prompt_logprobs"), int),
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens"), int),
    **dict.fromkeys(("truncate_prompt_tokens", "max_tokens_per_query", "max_tokens_per_doc"), int),
}
"""What vLLM makes of these fields; all of them may be null."""
_PLAIN: Mapping[type, TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in (bool, int)}


def with_plain_values(call: Wrapped) -> Wrapped:
    """The call with plain values; what stands for none is left to vLLM, but for `stream`."""
    plain: dict[str, Any] = {}
    for name, value in call.fields.items():
        kind = _KINDS.get(name)
        if kind is None or value is None or type(value) is kind:
            continue  # the usual case
        if name == "logprobs" and "messages" in call.fields:
            kind = bool  # in a chat `top_logprobs` has the number
        if type(value) is not kind and (name != "stream" or call.endpoint.stream):
            with contextlib.suppress(ValidationError):
                plain[name] = _PLAIN[kind].validate_python(value)
    if not plain:
        return call
    fields = {**call.fields, **plain}
    if call.endpoint.body is not BodyKind.JSON:  # vLLM reads a form's texts in the same way
        return call._replace(fields=fields)
    return call._replace(fields=fields, body=json.dumps(fields, ensure_ascii=False).encode())

"""A request's body: read once with a limit, parsed once and strictly.

Strict means: UTF-8, one JSON object, no NaN or infinity, no key twice. A body that two parsers
could read in two ways must not pass a gateway that looks at one of them.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from typing import Any, NoReturn

from starlette.types import Receive, Scope

from gateway.wire import body_at_hand
from shared.errors import BadRequest, BodyTimeout, BodyTooLarge, UnsupportedMediaType

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


async def read_body(scope: Scope, receive: Receive, max_bytes: int, timeout_s: float) -> bytes:
    """The whole body. Raises UnsupportedMediaType, BodyTooLarge, BodyTimeout,
    BadRequest."""
    headers = dict(scope["headers"])
    media_type = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
    if media_type != b"application/json":
        # vLLM takes no other type either; and a foreign web page can't send this one unasked.
        sent = repr(media_type[:64]) if media_type else "none"
        raise UnsupportedMediaType(
            "Send the body as JSON, with the header `Content-Type: application/json`; "
            f"the type of this request is {sent}."
        )
    too_large = BodyTooLarge(f"The body is larger than {max_bytes} bytes.")
    encoding = headers.get(b"content-encoding", b"identity").decode("latin-1").lower()
    if encoding != "identity":
        raise BadRequest(f"A body with content-encoding {encoding[:32]!r} is not read here.")
    announced = headers.get(b"content-length", b"0")
    if announced.isdigit() and int(announced) > max_bytes:
        raise too_large
    whole = body_at_hand(receive)
    if whole is not None:  # the rule, and a timeout costs more than all of this
        if len(whole) > max_bytes:
            raise too_large
        return whole
    parts = []
    size = 0
    try:
        async with asyncio.timeout(timeout_s):
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise BadRequest("The body ended early.")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > max_bytes:
                    raise too_large
                more = message.get("more_body", False)
    except TimeoutError as error:
        raise BodyTimeout(f"The body was not complete after {timeout_s:.0f} s.") from error
    return b"".join(parts)


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`. Raises BadRequest."""
    try:
        value = _DECODER.decode(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadRequest("The body is not UTF-8.") from error
    except RecursionError as error:
        raise BadRequest("The body is nested too deeply.") from error
    except ValueError as error:
        raise BadRequest(f"The body is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadRequest("The body must be a JSON object.")
    if _SURROGATE.search(body):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise BadRequest("The body holds half a character (a lone surrogate).") from error
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("a number is out of range")
    return value


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite
)

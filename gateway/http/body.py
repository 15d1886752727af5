"""A request's body: read once with a limit, parse_json once and strictly.

Strict means: UTF-8, one JSON object, no NaN or infinity, no key twice. A body that two parsers
could read in two ways must not pass a gateway that looks at one of them.

A large body is parse_json in a thread, one at a time, and only after a count of what is in it: the JSON
parser keeps the interpreter to itself while it builds a list, and all streams wait so long.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, NoReturn, TypeVar

from starlette.types import Receive, Scope

from gateway.http import memory
from gateway.http.asgi_io import buffered_body
from shared.api.endpoints import BodyKind
from shared.api.errors import BadRequest, BodyTimeout, BodyTooLarge, UnsupportedMediaType

T = TypeVar("T")

_MEDIA_TYPES = {BodyKind.JSON: b"application/json"}
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_SPACE = re.compile(r"[ \t\n\r]*")
_SMALL_BYTES = 1 << 16
"""Up to here a body is parse_json on the event loop: 4 ms at worst, and a thread costs time too."""
_PIECE_BYTES = 1 << 18
_thread = ThreadPoolExecutor(1, "bodies")


class Limits(NamedTuple):
    """What one body may hold, whatever its size in bytes."""

    values: int
    objects: int
    """Objects, lists and strings, keys among them: while the parser makes these it lets no other
    thread run, unlike with numbers (see `_integer`)."""


async def read_body(
    scope: Scope, receive: Receive, kind: BodyKind, max_bytes: int, timeout_s: float
) -> bytes:
    """The whole body, if its content type is that of `kind`.

    Raises UnsupportedMediaType, BodyTooLarge, BodyTimeout, and BadRequest.
    """
    headers = dict(scope["headers"])
    media_type = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
    if media_type != _MEDIA_TYPES[kind]:
        # vLLM accepts no other type either; and a page of another site can't send JSON without a
        # CORS preflight request, which is not answered.
        expected, sent = (
            _MEDIA_TYPES[kind].decode(),
            repr(media_type[:64]) if media_type else "none",
        )
        raise UnsupportedMediaType(
            f"Send the body as {kind.upper()}, with the header `Content-Type: {expected}`; "
            f"the content type of this request is {sent}."
        )
    too_large = BodyTooLarge(f"The body is larger than {max_bytes} bytes.")
    encoding = headers.get(b"content-encoding", b"identity").decode("latin-1").lower()
    if encoding != "identity":
        raise BadRequest(f"A body with content-encoding {encoding[:32]!r} is not read here.")
    announced = headers.get(b"content-length", b"0")
    if announced.isdigit() and int(announced) > max_bytes:
        raise too_large
    whole = buffered_body(receive)
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


async def parse_json(body: bytes, limits: Limits, use: Callable[[dict[str, Any]], T]) -> T:
    """`use` of the JSON object in `body`. Raises BadRequest, BodyTooLarge, and what `use` raises.

    For a large body `use` is called in a thread. It should return no more than is needed: the
    object is freed when it returns.
    """
    if len(body) <= _SMALL_BYTES:
        return use(parse_object(body))

    def in_thread() -> T:
        check_size(body, limits)
        return use(parse_object(body))

    try:
        return await asyncio.get_running_loop().run_in_executor(_thread, in_thread)
    finally:
        memory.return_soon()


def check_size(body: bytes, limits: Limits) -> None:
    """Refuse a body that holds too much, before anything is built of it. Raises BodyTooLarge."""
    if _fits(body, body.count(b'"'), limits):
        return  # the rule: no need to tell text from structure
    # Without these each quote begins or ends a string.
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    left, quotes = limits, 0
    for start in range(0, len(plain), _PIECE_BYTES):
        parts = plain[start : start + _PIECE_BYTES].split(b'"')
        outside = b"".join(parts[quotes % 2 :: 2])
        quotes += len(parts) - 1
        if not _fits(outside, quotes, left):
            raise BodyTooLarge(
                f"The body holds more than {limits.values} values, "
                f"or {limits.objects} objects, lists and strings."
            )
        containers = _containers(outside)
        left = Limits(left.values - containers - outside.count(b","), left.objects - containers)


def _fits(structure: bytes, quotes: int, limits: Limits) -> bool:
    containers = _containers(structure)
    return (
        containers + structure.count(b",") <= limits.values
        and containers + quotes // 2 <= limits.objects
    )


def _containers(structure: bytes) -> int:
    return structure.count(b"{") + structure.count(b"[")


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


def raw_member(body: bytes, name: str) -> bytes:
    """The JSON text of a member's value, as it stands in a body that `parse_object` has taken."""
    text = body.decode()

    def skip(at: int) -> int:
        space = _SPACE.match(text, at)
        return space.end() if space else at

    at = skip(text.index("{") + 1)
    while text[at] == '"':
        key, at = _DECODER.raw_decode(text, at)
        start = skip(skip(at) + 1)  # behind the colon
        _, end = _DECODER.raw_decode(text, start)
        if key == name:
            return text[start:end].encode()
        at = skip(skip(end) + 1)  # behind the comma
    raise KeyError(name)


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


def _integer(text: str) -> int:
    # The parser would do this by itself, but keep the interpreter from one number to the next.
    return int(text)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique,
    parse_constant=_no_constant,
    parse_float=_finite,
    parse_int=_integer,
)

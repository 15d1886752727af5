"""A request's body: read once with a size limit, parsed once and strictly.

Strict means: UTF-8, one JSON object, no NaN or infinity, no duplicate keys. The gateway checks a
body and vLLM parses it again; both must understand the same.

A large body is parsed in a thread, one at a time, and only after its values were counted: while the
JSON parser builds a list it holds the interpreter's lock, and all streams wait.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, NoReturn, TypeVar

from starlette.types import Receive, Scope

from gateway.http import memory
from gateway.http.asgi_io import buffered_body
from shared.api.endpoint import BodyKind
from shared.job.errors import BadRequest, BodyTimeout, BodyTooLarge, UnsupportedMediaType

T = TypeVar("T")

_MEDIA_TYPES = {BodyKind.JSON: b"application/json", BodyKind.MULTIPART: b"multipart/form-data"}
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_SPACE = re.compile(r"[ \t\n\r]*")
SMALL_BYTES = 1 << 16
"""A smaller body is parsed on the event loop: in 4 ms at most, and a thread costs time, too."""
_COUNT_BYTES = 1 << 18
"""Bytes whose values are counted at once."""
MAX_DEPTH = 128
"""Levels of objects and lists in a body, which vLLM and our checks walk through recursively."""
_thread = ThreadPoolExecutor(1, "bodies")


class Limits(NamedTuple):
    """How much one body may contain, whatever its size in bytes."""

    values: int
    objects: int
    """Objects, lists and strings, including keys. While the parser creates these, no other thread
    can run; between numbers one can (see `_integer`)."""


async def read_body(
    scope: Scope, receive: Receive, kind: BodyKind, max_bytes: int, timeout_s: float
) -> bytes:
    """The whole body without a byte order mark, if its content type is that of `kind`.

    Raises UnsupportedMediaType, BodyTooLarge, BodyTimeout, and BadRequest.
    """
    headers = dict(scope["headers"])
    check_type(headers, kind)
    announced = headers.get(b"content-length", b"0")
    if announced.isdigit() and int(announced) > max_bytes:
        raise _too_large(max_bytes)
    whole = buffered_body(receive)
    if whole is not None:  # the usual case, and a timeout costs more than all of this
        if len(whole) > max_bytes:
            raise _too_large(max_bytes)
        return whole.removeprefix(codecs.BOM_UTF8)
    try:
        async with asyncio.timeout(timeout_s):
            return (await _received(receive, max_bytes)).removeprefix(codecs.BOM_UTF8)
    except TimeoutError as error:
        raise BodyTimeout(f"The body did not arrive within {timeout_s:.0f} s.") from error


def has_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a request has one, by its headers."""
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0") != b"")
        for name, value in headers
    )


def check_type(headers: Mapping[bytes, bytes], kind: BodyKind) -> None:
    """Raise UnsupportedMediaType or BadRequest for a body that can't be read."""
    header = headers.get(b"content-type", b"")
    if header == _MEDIA_TYPES[kind] and b"content-encoding" not in headers:
        return  # the usual case
    media_type = header.split(b";")[0].strip().lower()
    if media_type != _MEDIA_TYPES[kind]:
        # vLLM accepts no other type either; and a page of another site can't send JSON without a
        # CORS preflight request, which is answered with keys only.
        expected = _MEDIA_TYPES[kind].decode()
        sent = repr(media_type[:64].decode("latin-1")) if media_type else "none"
        form = "a form with a file" if kind is BodyKind.MULTIPART else "JSON"
        raise UnsupportedMediaType(
            f"Send the body as {form}, with the header `Content-Type: {expected}`; "
            f"the content type of this request is {sent}."
        )
    encoding = headers.get(b"content-encoding", b"identity").decode("latin-1").lower()
    if encoding != "identity":
        raise BadRequest(
            f"`Content-Encoding: {encoding[:32]}` is not supported; send the body uncompressed."
        )


async def _received(receive: Receive, max_bytes: int) -> bytes:
    """The parts of a body that comes in several. Raises BodyTooLarge and BadRequest."""
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BadRequest("The client closed the connection before the body was complete.")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > max_bytes:
            raise _too_large(max_bytes)
        more = message.get("more_body", False)
    return b"".join(parts)


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than {max_bytes} bytes.")


async def parse_json(body: bytes, limits: Limits, use: Callable[[dict[str, Any]], T]) -> T:
    """Call `use` with the JSON object in `body`, and return its result.

    For a large body `use` is called in a thread. Its result should hold no more than is needed, so
    that the object can be freed. Raises BadRequest, BodyTooLarge, and what `use` raises.
    """
    if len(body) <= SMALL_BYTES:
        return use(parse_object(body))

    def parse() -> T:
        check_size(body, limits)
        return use(parse_object(body))

    return await in_thread(parse)


async def in_thread(parse: Callable[[], T]) -> T:
    """Call it in the thread for large bodies, one at a time."""
    try:
        return await asyncio.get_running_loop().run_in_executor(_thread, parse)
    finally:
        memory.return_soon()


def check_size(body: bytes, limits: Limits) -> None:
    """Count the values in a body before it is parsed. Raises BodyTooLarge."""
    if _fits(body, body.count(b'"'), limits):
        return  # the usual case: within the limits even if commas and brackets in strings count
    # Without escapes each quote begins or ends a string.
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    left, quotes = limits, 0
    for start in range(0, len(plain), _COUNT_BYTES):
        parts = plain[start : start + _COUNT_BYTES].split(b'"')
        outside = b"".join(parts[quotes % 2 :: 2])
        quotes += len(parts) - 1
        if not _fits(outside, quotes, left):
            raise BodyTooLarge(
                f"The body contains more than {limits.values} values, "
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
    if _containers(body) > MAX_DEPTH and _too_deep(value):
        raise BadRequest(f"The body is nested too deeply: more than {MAX_DEPTH} levels.")
    if _SURROGATE.search(body):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise BadRequest("The body contains a lone surrogate (half of a character).") from error
    return value


def _too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for node in level
            for inner in (node.values() if isinstance(node, dict) else node)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def raw_member(body: bytes, name: str) -> bytes:
    """The JSON text of a member's value, unchanged. `body` must have passed `parse_object`.

    Raises KeyError if there is no such member.
    """
    text = body.decode()

    def skip(at: int) -> int:
        space = _SPACE.match(text, at)
        return space.end() if space else at

    at = skip(text.index("{") + 1)
    while text[at] == '"':
        key, at = _DECODER.raw_decode(text, at)
        start = skip(skip(at) + 1)  # after the colon
        _, end = _DECODER.raw_decode(text, start)
        if key == name:
            return text[start:end].encode()
        at = skip(skip(end) + 1)  # after the comma
    raise KeyError(name)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("an object has a duplicate key")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("a number is out of range")
    return value


def _integer(text: str) -> int:
    # The parser could do this itself, but other threads can run only while Python code runs.
    return int(text)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique,
    parse_constant=_no_constant,
    parse_float=_finite,
    parse_int=_integer,
)

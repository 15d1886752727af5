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
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeVar

from starlette.types import Receive, Scope

from gateway.http import memory
from gateway.http.asgi_io import buffered_body
from gateway.http.content_coding import Unpacker, coding_of
from gateway.http.held_bytes import BODIES, Most
from shared.api.endpoint import BodyKind
from shared.job.errors import (
    BadRequest,
    BodyTimeout,
    BodyTooLarge,
    TooManyBodies,
    UnsupportedMediaType,
)

T = TypeVar("T")

_MEDIA_TYPES = {BodyKind.JSON: b"application/json", BodyKind.MULTIPART: b"multipart/form-data"}
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_SPACE = re.compile(r"[ \t\n\r]*")
SMALL_BYTES = 1 << 16
"""A smaller body is parsed on the event loop: in 4 ms at most, and a thread costs time, too."""
_COUNT_BYTES = 1 << 18
"""Bytes whose values are counted at once."""
_WAIT_S = 5.0
"""For room for a body, before it is refused."""
_MAX_DEPTH = 128
"""Levels of objects and lists in a body, which vLLM and our checks walk through recursively."""
_thread = ThreadPoolExecutor(1, "bodies")


_unpacking = asyncio.Lock()
"""One body is unpacked at a time, so that it is known what those that have been take."""


class BodyLimit(NamedTuple):
    """What one body may cost before it is parsed."""

    max_bytes: int
    """Of the body, unpacked."""
    setting: str
    """The name of the setting that says so; empty: none does."""
    timeout_s: float
    """For receiving it."""
    held_bytes: int
    """Of all bodies of the process."""

    @property
    def most(self) -> Most:
        """One tenant may hold a half."""
        return Most(self.held_bytes, self.held_bytes // 2)

    def too_large(self) -> BodyTooLarge:
        """The error of a larger body."""
        name = f" ({self.setting})" if self.setting else ""
        return BodyTooLarge(f"The body is larger than {self.max_bytes} bytes{name}.")


class Limits(NamedTuple):
    """How much one body may contain, whatever its size in bytes."""

    values: int
    objects: int
    """Objects, lists and strings, including keys. While the parser creates these, no other thread
    can run; between numbers one can (see `_integer`)."""


async def read_body(scope: Scope, receive: Receive, kind: BodyKind, limit: BodyLimit) -> bytes:
    """The whole body, unpacked and without a byte order mark, if its type is that of `kind`.

    A large one is counted in BODIES until the request ends, or `release` is called. Raises
    UnsupportedMediaType, BodyTooLarge, BodyTimeout, TooManyBodies, and BadRequest.
    """
    headers = dict(scope["headers"])
    check_type(headers, kind)
    coding = coding_of(headers)
    announced = headers.get(b"content-length", b"")
    size = int(announced) if announced.isdigit() and len(announced) < 20 else 0
    if size > limit.max_bytes:
        raise limit.too_large()
    body = buffered_body(receive)
    if body is None:  # rare, and a timeout costs more than all of this
        body = await _received(scope, receive, limit, size, coding)
    elif len(body) > limit.max_bytes:
        raise limit.too_large()
    elif len(body) > SMALL_BYTES:
        await _hold(scope, len(body), limit)
    if coding:
        body = await _unpacked(scope, body, coding, limit)
    return body.removeprefix(codecs.BOM_UTF8)


def has_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a request has one, by its headers."""
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0") != b"")
        for name, value in headers
    )


def check_type(headers: Mapping[bytes, bytes], kind: BodyKind) -> None:
    """Raise UnsupportedMediaType for a body of another type."""
    header = headers.get(b"content-type", b"")
    if header == _MEDIA_TYPES[kind]:
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


async def _received(
    scope: Scope, receive: Receive, limit: BodyLimit, announced: int, coding: str
) -> bytes:
    """A body that comes in several parts. Raises as `read_body`."""
    parts: list[bytes] = []
    size, counted, more = 0, False, True
    until = asyncio.get_running_loop().time() + limit.timeout_s
    try:
        while more:
            async with asyncio.timeout_at(until):
                message = await receive()
            if message["type"] == "http.disconnect":
                raise BadRequest("The client closed the connection before the body was complete.")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit.max_bytes:
                raise limit.too_large()
            more = message.get("more_body", False)
            if size > SMALL_BYTES and not counted:
                counted, expected = True, announced or limit.max_bytes
                await _hold(scope, expected, limit)
                if coding:
                    async with _unpacking:
                        await in_thread(partial(_check_start, b"".join(parts), coding, limit))
    except TimeoutError as error:
        raise BodyTimeout(f"The body did not arrive within {limit.timeout_s:.0f} s.") from error
    if counted:
        BODIES.hold(scope, size)
        return await in_thread(partial(b"".join, parts))
    return b"".join(parts)


async def _hold(scope: Scope, n_bytes: int, limit: BodyLimit) -> None:
    """Count so many bytes as held. Raises TooManyBodies if there is no room, even after a wait."""
    await _room(scope, n_bytes, limit)
    BODIES.hold(scope, n_bytes)


async def _room(scope: Scope, n_bytes: int, limit: BodyLimit) -> None:
    try:
        await BODIES.room(scope, n_bytes, limit.most, _WAIT_S)
    except TimeoutError as error:
        raise TooManyBodies(
            "This gateway receives as many large bodies as it may hold at a time; try again."
        ) from error


async def _unpacked(scope: Scope, body: bytes, coding: str, limit: BodyLimit) -> bytes:
    """A compressed body. Raises BadRequest, BodyTooLarge, and TooManyBodies."""
    if len(body) <= SMALL_BYTES:
        try:
            return _unpack(body, coding, min(SMALL_BYTES, limit.max_bytes))
        except _More:
            pass
    while True:
        await _room(scope, limit.max_bytes, limit)
        async with _unpacking:
            if BODIES.fits(scope, limit.max_bytes, limit.most):
                found = await in_thread(partial(_unpack_large, body, coding, limit))
                BODIES.hold(scope, len(found))
                return found


def _check_start(start: bytes, coding: str, limit: BodyLimit) -> None:
    """Raise BodyTooLarge if the start of a compressed body is too large by itself already."""
    size = 0
    for piece in Unpacker(coding).unpack(start):
        size += len(piece)
        if size > limit.max_bytes:
            raise limit.too_large()


def _unpack_large(body: bytes, coding: str, limit: BodyLimit) -> bytes:
    """Raises BadRequest and BodyTooLarge."""
    _check_start(body[:SMALL_BYTES], coding, limit)
    try:
        return _unpack(body, coding, limit.max_bytes)
    except _More:
        raise limit.too_large() from None


class _More(Exception):
    """A body has more bytes than were asked for."""


def _unpack(body: bytes, coding: str, most_bytes: int) -> bytes:
    """Raises BadRequest, and _More."""
    unpacker, parts, size = Unpacker(coding), [], 0
    for piece in unpacker.unpack(body):
        size += len(piece)
        if size > most_bytes:
            raise _More
        parts.append(piece)
    unpacker.check_ended()
    return b"".join(parts)


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
    if _containers(body) > _MAX_DEPTH and _too_deep(value):
        raise BadRequest(f"The body is nested too deeply: more than {_MAX_DEPTH} levels.")
    if _has_surrogate(body):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise BadRequest("The body contains a lone surrogate (half of a character).") from error
    return value


def _has_surrogate(body: bytes) -> bool:
    """Whether an escape in a body is half of a character."""
    # In parts: during a search no other thread runs, so streams would wait for it.
    return b"\\u" in body and any(
        _SURROGATE.search(body, start, start + _COUNT_BYTES + len(r"\uDFF"))
        for start in range(0, len(body), _COUNT_BYTES)
    )


def _too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_MAX_DEPTH):
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

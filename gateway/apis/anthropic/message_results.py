"""The lines of a batch's output and errors as Anthropic's results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec

from shared.batches.batch import CUT_OFF_CANCELLED, CUT_OFF_EXPIRED


class _Response(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw
    """A message, or an error in Anthropic's shape."""


class _Error(msgspec.Struct):
    code: str
    message: str


class _Line(msgspec.Struct):
    custom_id: str
    response: _Response | None
    error: _Error | None


_parse = msgspec.json.Decoder(_Line).decode
_AT_ONCE = 500
"""Lines; other work goes on between two parts of them."""
_CUT_OFF = {CUT_OFF_CANCELLED: b"canceled", CUT_OFF_EXPIRED: b"expired"}


async def results(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The results in the lines that these chunks have, some at a time."""
    begun = b""
    async for chunk in chunks:
        *lines, begun = (begun + chunk).split(b"\n")
        for at in range(0, len(lines), _AT_ONCE):
            yield b"".join(map(result, lines[at : at + _AT_ONCE]))
            await asyncio.sleep(0)


def result(line: bytes) -> bytes:
    """One line of the results, with its newline."""
    parsed = _parse(line)
    response, error = parsed.response, parsed.error
    if response is None:
        code, message = (error.code, error.message) if error else ("", "")
        found = _cut_off(code) or _errored(_failure(code, message), b"null")
    elif response.status_code < 400:
        found = b'{"type":"succeeded","message":%b}' % bytes(response.body)
    else:
        found = _errored(bytes(response.body), msgspec.json.encode(response.request_id))
    return b'{"custom_id":"%b","result":%b}\n' % (parsed.custom_id.encode(), found)


def _cut_off(code: str) -> bytes:
    return b'{"type":"%b"}' % _CUT_OFF[code] if code in _CUT_OFF else b""


def _errored(error: bytes, request_id: bytes) -> bytes:
    return b'{"type":"errored","error":%b,"request_id":%b}}' % (error[:-1], request_id)


def _failure(code: str, message: str) -> bytes:
    error = {"type": "api_error", "message": message, "code": code}
    return msgspec.json.encode({"type": "error", "error": error})

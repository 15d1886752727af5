"""The requests of a new batch as the lines of its input, made as the body arrives."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import msgspec

from gateway.apis.anthropic.request_splitter import RequestSplitter
from gateway.http.body_parts import BodyParts
from shared.job.errors import BadRequest, BodyTooLarge

MOST_REQUESTS = 100_000
MOST_BYTES = 256 << 20
"""Of the body."""
ENDPOINT = "/v1/messages"
_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_STEP_BYTES = 1 << 13
"""Looked at in one go: in 0.2 ms, or some ms if they are all brackets. Between two, other work goes
on."""
_CHUNK_BYTES = 1 << 18
_HEAD = b'{"custom_id":"%b","method":"POST","url":"' + ENDPOINT.encode() + b'","body":'


class _Request(msgspec.Struct, forbid_unknown_fields=True):
    custom_id: str
    params: msgspec.Raw


class _Params(msgspec.Struct):
    model: str = ""


_JSON_TYPES = {"str": "a string", "int": "a number", "float": "a number", "bool": "a boolean"}
_TYPE = re.compile(f"`({'|'.join(_JSON_TYPES)})`")
"""A type in a message of msgspec's."""
_request = msgspec.json.Decoder(_Request).decode
_params = msgspec.json.Decoder(_Params).decode


class BatchRequests:
    """Those of one body. The fields of `params` are checked when the line runs."""

    def __init__(self, most_bytes: int) -> None:
        """`most_bytes`: of one request."""
        self._splitter = RequestSplitter(most_bytes)
        self._ids: set[str] = set()
        self._models: set[str] = set()

    @property
    def total(self) -> int:
        """How many there are so far."""
        return len(self._ids)

    @property
    def model(self) -> str:
        """The model of all of them; empty: several, or not known."""
        return next(iter(self._models)) if len(self._models) == 1 else ""

    async def lines(self, body: BodyParts) -> AsyncIterator[bytes]:
        """The lines, some at a time. Raises BadRequest, BodyTooLarge, and BodyTimeout."""
        found, size, n_bytes = [], 0, 0
        async for data in body.all():
            n_bytes += len(data)
            check_size(n_bytes)
            for at in range(0, len(data), _STEP_BYTES):
                for request in self._splitter.feed(data[at : at + _STEP_BYTES]):
                    found.append(self._line(request))
                    size += len(found[-1])
                await asyncio.sleep(0)
            if size >= _CHUNK_BYTES:
                yield b"".join(found)
                found, size = [], 0
        self._splitter.finish()
        if not self._ids:
            raise BadRequest("`requests` is empty.", "requests")
        yield b"".join(found)

    def _line(self, data: bytes) -> bytes:
        number = len(self._ids)
        if number >= MOST_REQUESTS:
            raise BadRequest(f"A batch may have {MOST_REQUESTS} requests at most.", "requests")
        name = f"requests.{number}"
        try:
            request = _request(data)
        except (ValueError, RecursionError) as error:
            words = _TYPE.sub(lambda found: _JSON_TYPES[found[1]], str(error))
            raise BadRequest(f"{name}: {words}", name) from error
        custom_id, params = request.custom_id, bytes(request.params)
        if not _ID.fullmatch(custom_id):
            raise BadRequest(f"{name}.custom_id: must match {_ID.pattern}.", f"{name}.custom_id")
        if custom_id in self._ids:
            raise BadRequest(
                f"{name}.custom_id: {custom_id!r} is there twice.", f"{name}.custom_id"
            )
        if not params.startswith(b"{"):
            raise BadRequest(f"{name}.params: must be an object.", f"{name}.params")
        self._ids.add(custom_id)
        self._note_model(params)
        # Within texts they would be escaped.
        params = params.replace(b"\n", b" ").replace(b"\r", b" ")
        return b"%b%b}\n" % (_HEAD % custom_id.encode(), params)

    def _note_model(self, params: bytes) -> None:
        if len(self._models) > 1:
            return
        try:
            self._models.add(_params(params).model)
        except (ValueError, RecursionError):
            self._models.add("")  # of another type: the line is refused when it runs


def check_size(n_bytes: int) -> None:
    """Raise BodyTooLarge for a body of so many bytes, if that is too much."""
    if n_bytes > MOST_BYTES:
        raise BodyTooLarge(f"The body is larger than {MOST_BYTES} bytes.")

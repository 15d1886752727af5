"""Uploads a file with one request, read from the disk while it is sent."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import NamedTuple

from gateway.cli.exit_codes import CommandError
from gateway.cli.gateway_client import GatewayClient, Patience

_CHUNK_BYTES = 1 << 18
_ESCAPED = {ord('"'): "%22", ord("\r"): "%0D", ord("\n"): "%0A"}


class UploadSource(NamedTuple):
    """What is uploaded, and how it is told what has been done."""

    filename: str
    purpose: str
    n_bytes: int
    data: Callable[[], Iterator[bytes]]
    """All its bytes, from the beginning at each call."""
    progress: Callable[[int], None]
    """Called with the number of bytes that are sent."""


def upload(client: GatewayClient, what: UploadSource) -> str:
    """Upload it, again if the gateway is lost on the way; returns the file's id.

    Raises CommandError.
    """
    boundary = secrets.token_hex(16)
    head = (
        f'--{boundary}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\n{what.purpose}\r\n'
        f'--{boundary}\r\ncontent-disposition: form-data; name="file"; '
        f'filename="{what.filename.translate(_ESCAPED)}"\r\n'
        "content-type: application/octet-stream\r\n\r\n"
    ).encode(errors="replace")
    tail = f"\r\n--{boundary}--\r\n".encode()
    headers = {
        "content-type": f"multipart/form-data; boundary={boundary}",
        "content-length": str(len(head) + what.n_bytes + len(tail)),
    }

    def body() -> Iterator[bytes]:
        client.reached, sent = True, 0
        yield head
        for chunk in _joined(what.data()):
            yield chunk
            sent += len(chunk)
            what.progress(sent)
        yield tail

    patience = Patience(client)
    while True:
        try:
            with client.exchange("POST", "/v1/files", headers=headers, content=body()) as answer:
                answer.read()
                return str(answer.json()["id"])
        except CommandError as error:
            patience.wait(error)


def _joined(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in fewer pieces: lines are short."""
    waiting, size = [], 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= _CHUNK_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    yield b"".join(waiting)

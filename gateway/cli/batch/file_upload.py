"""Uploads a file in parts, two at a time; an upload that was cut off goes on where it stopped."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

from gateway.cli.exit_codes import CommandError, ExitCode
from gateway.cli.gateway_client import ATTEMPTS, RETRY_S, GatewayClient

PART_BYTES = 64 << 20
_AT_ONCE = 2
_CHUNK_BYTES = 1 << 18
_GONE = (ExitCode.NOT_FOUND, ExitCode.REFUSED, ExitCode.USAGE)
_AGAIN = (ExitCode.UNREACHABLE, ExitCode.TIMED_OUT)
_AGAIN_CODES = ("storage_unavailable", "redis_unavailable", "gateway_stopped")


class UploadSource(NamedTuple):
    """What is uploaded, and how it is told what has been done."""

    filename: str
    purpose: str
    n_bytes: int
    part: Callable[[int, int], Iterator[bytes]]
    """The bytes of the part with this number from 0, which has so many; at any time, repeatedly."""
    progress: Callable[[int], None]
    """Called with the number of bytes that are uploaded."""


def upload(
    client: GatewayClient, what: UploadSource, known: dict[str, Any], save: Callable[[], None]
) -> str:
    """Upload it; returns the id of the file. Raises CommandError.

    `known`: what an earlier run has done, empty for nothing; `save` is called when it has changed.
    """
    if known:
        try:
            return _upload(client, what, known, save)
        except CommandError as error:
            if error.code not in _GONE:
                raise
            known.clear()  # it has expired since
    body = {
        "bytes": what.n_bytes,
        "filename": what.filename,
        "mime_type": "application/jsonl",
        "purpose": what.purpose,
    }
    known |= {"id": client.post("/v1/uploads", body)["id"], "parts": {}}
    save()
    return _upload(client, what, known, save)


def _upload(
    client: GatewayClient, what: UploadSource, known: dict[str, Any], save: Callable[[], None]
) -> str:
    """Send the parts that are not there, and make a file of all."""
    stop = threading.Event()
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        _upload_parts(client, what, known, save, _Parts(pool, stop))
    finally:
        stop.set()  # after Ctrl-C, too: the parts end in the middle
        pool.shutdown(cancel_futures=True)
    ids = [known["parts"][str(number)] for number in range(len(known["parts"]))]
    done = client.post(f"/v1/uploads/{known['id']}/complete", {"part_ids": ids}, wait_s=60)
    return str(done["file"]["id"])


class _Parts(NamedTuple):
    pool: ThreadPoolExecutor
    stop: threading.Event


def _upload_parts(
    client: GatewayClient,
    what: UploadSource,
    known: dict[str, Any],
    save: Callable[[], None],
    parts: _Parts,
) -> None:
    done: dict[str, str] = known["parts"]
    sizes = [
        min(PART_BYTES, what.n_bytes - start)
        for start in range(0, max(what.n_bytes, 1), PART_BYTES)
    ]
    waiting = [number for number in range(len(sizes)) if str(number) not in done]
    running: dict[Future[str], int] = {}
    while waiting or running:
        while waiting and len(running) < _AT_ONCE:
            number = waiting.pop(0)
            send = (client, f"/v1/uploads/{known['id']}/parts", what, number, sizes[number])
            running[parts.pool.submit(_send_part, *send, parts.stop)] = number
        ended, _ = wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
        for each in ended:
            done[str(running.pop(each))] = each.result()
            save()
            what.progress(sum(sizes[int(number)] for number in done))


def _send_part(
    client: GatewayClient,
    path: str,
    what: UploadSource,
    number: int,
    n_bytes: int,
    stop: threading.Event,
) -> str:
    """Send a part, again if the gateway is away; returns its id."""
    boundary = secrets.token_hex(16)
    head = (
        f'--{boundary}\r\ncontent-disposition: form-data; name="data"; filename="part"\r\n'
        "content-type: application/octet-stream\r\n\r\n"
    ).encode()
    tail = f"\r\n--{boundary}--\r\n".encode()
    headers = {
        "content-type": f"multipart/form-data; boundary={boundary}",
        "content-length": str(len(head) + n_bytes + len(tail)),
    }

    def body() -> Iterator[bytes]:
        yield head
        for chunk in _joined(what.part(number, n_bytes)):
            if stop.is_set():
                raise CommandError("the upload was interrupted", ExitCode.INTERRUPTED)
            yield chunk
        yield tail

    for attempt in range(1, ATTEMPTS + 1):
        try:
            with client.exchange("POST", path, headers=headers, content=body()) as answer:
                answer.read()
                return str(answer.json()["id"])
        except CommandError as error:
            if attempt == ATTEMPTS or not _is_temporary(error):
                raise
        stop.wait(RETRY_S * 2**attempt)
    raise AssertionError


def _is_temporary(error: CommandError) -> bool:
    body = (error.body or b"").decode(errors="replace")
    return error.code in _AGAIN or any(code in body for code in _AGAIN_CODES)


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

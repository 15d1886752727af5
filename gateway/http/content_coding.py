"""Compressed bodies: gzip, deflate and zstd, unpacked in pieces of bounded size."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Generator, Iterator, Mapping
from typing import Any, Protocol

from shared.job.errors import BadRequest, UnsupportedCoding

PIECE_BYTES = 1 << 16
"""Unpacked at once, at most."""
_INPUT_BYTES = 1 << 14
"""Given to a decoder at once: zlib copies what it leaves of it for the next piece."""
_MAX_MEMBERS = 256
"""Members of gzip, or frames of zstd, in one body; each costs time, though it may be empty."""
_WINDOW_LOG = 23
"""8 MiB, the largest window of zstd that HTTP allows (RFC 9659)."""
_NAMES = {"gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate", "zstd": "zstd", "identity": ""}


def coding_of(headers: Mapping[bytes, bytes]) -> str:
    """How a body with these headers is compressed; empty: not. Raises UnsupportedCoding."""
    if b"content-encoding" not in headers:
        return ""
    name = headers[b"content-encoding"].decode("latin-1").strip().lower()
    if name not in _NAMES:
        raise UnsupportedCoding(
            f"`Content-Encoding: {name[:64]}` is not supported: send the body uncompressed, or "
            "with one of gzip, deflate and zstd."
        )
    return _NAMES[name]


class _Decoder(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class Unpacker:
    """Unpacks one body."""

    def __init__(self, coding: str) -> None:
        """`coding`: one that `coding_of` returns, not empty."""
        self._coding = coding
        self._errors: type[Exception] = _zstd().ZstdError if coding == "zstd" else zlib.error
        self._decoder: _Decoder | None = None  # None: between two members, or before the first
        self._members = 0

    def unpack(self, data: bytes) -> Iterator[bytes]:
        """What comes of the next bytes, in pieces. Raises BadRequest."""
        for at in range(0, len(data), _INPUT_BYTES):
            rest = data[at : at + _INPUT_BYTES]
            while rest:
                try:
                    rest = yield from self._unpack_member(rest)
                except self._errors as error:
                    raise BadRequest(f"The body is not valid {self._coding}: {error}.") from error

    def check_ended(self) -> None:
        """Raise BadRequest if the body has not ended."""
        if self._decoder is not None or not self._members:
            raise BadRequest(f"The body is not valid {self._coding}: it ends too early.")

    def _unpack_member(self, data: bytes) -> Generator[bytes, None, bytes]:
        """Returns what is behind its end."""
        if self._decoder is None:
            self._members += 1
            if self._members > (1 if self._coding == "deflate" else _MAX_MEMBERS):
                raise BadRequest(f"The body is not valid {self._coding}: data follow its end.")
            self._decoder = _decoder(self._coding, data)
        decoder = self._decoder
        while True:
            piece = decoder.decompress(data, PIECE_BYTES)
            data = b""
            if piece:
                yield piece
            if decoder.eof:
                self._decoder = None
                return decoder.unused_data
            if decoder.needs_input:
                return b""


class _Inflate:
    """zlib's decoder, with the interface of the other one."""

    def __init__(self, window_bits: int) -> None:
        self._decoder = zlib.decompressobj(window_bits)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._decoder.eof

    @property
    def unused_data(self) -> bytes:
        return self._decoder.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        piece = self._decoder.decompress(self._decoder.unconsumed_tail + data, max_length)
        self.needs_input = not self._decoder.unconsumed_tail and len(piece) < max_length
        return piece


def _decoder(coding: str, data: bytes) -> _Decoder:
    """For a member that begins with these bytes."""
    if coding == "gzip":
        return _Inflate(16 + zlib.MAX_WBITS)
    if coding == "deflate":  # in zlib's format; some clients send it without that
        return _Inflate(zlib.MAX_WBITS if data[0] & 15 == zlib.DEFLATED else -zlib.MAX_WBITS)
    zstd = _zstd()
    options = {zstd.DecompressionParameter.window_log_max: _WINDOW_LOG}
    decoder: _Decoder = zstd.ZstdDecompressor(options=options)
    return decoder


def _zstd() -> Any:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd

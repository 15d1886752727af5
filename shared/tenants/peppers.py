"""The peppers of a fleet: keys of the digests under which API keys are stored."""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Sequence

LEAST_CHARS = 32
MOST_PEPPERS = 2
"""The current one, and the one that it replaces."""
_NAME_CHARS = 8


class Peppers:
    """One or two peppers, newest first; false without any."""

    def __init__(self, peppers: Sequence[str]) -> None:
        self._peppers = [pepper.encode() for pepper in peppers]
        self.names = [_digest(pepper, b"name").hex()[:_NAME_CHARS] for pepper in self._peppers]
        """A name for each, which tells nothing about it."""

    def __bool__(self) -> bool:
        return bool(self._peppers)

    def digest(self, secret: str) -> bytes:
        """HMAC-SHA256 with the newest, under which a new key is stored."""
        return _digest(self._peppers[0], secret.encode())

    def digests(self, secret: bytes) -> Iterator[bytes]:
        """HMAC-SHA256 of a secret with each pepper, made as they are asked for."""
        for pepper in self._peppers:
            yield _digest(pepper, secret)


def _digest(pepper: bytes, text: bytes) -> bytes:
    return hmac.digest(pepper, text, "sha256")

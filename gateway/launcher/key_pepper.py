"""The pepper of the API keys of one `flotilla up`, which is made once."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

_FILE = "key_pepper"
_BYTES = 32


def kept_pepper(folder: Path) -> str:
    """The pepper in this folder, which only its owner can read. Raises OSError."""
    path = folder / _FILE
    if not path.exists():
        unfinished = path.with_suffix(".new")
        unfinished.unlink(missing_ok=True)
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(_BYTES))
        unfinished.rename(path)
    return path.read_text().strip()

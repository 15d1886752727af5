"""The files of the page in gateway/page/, read once, with the headers that they are served with.

The page is static: it has no data of the fleet, so it needs no key. It loads nothing from other
hosts and runs no script but these files: under the policy below, a browser refuses both.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import NamedTuple

_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'"
)
_INDEX = "index.html"


class PageFile(NamedTuple):
    """One file."""

    content: bytes
    headers: dict[str, str]


def _page_file(name: str, content: bytes) -> PageFile:
    suffix = name[name.rindex(".") :]
    headers = {
        "content-type": _MEDIA_TYPES[suffix],
        "etag": f'"{hashlib.sha256(content).hexdigest()[:16]}"',
        # Revalidated each time, so that files of two releases are never mixed.
        "cache-control": "no-cache",
        "content-security-policy": _POLICY,
        "cross-origin-opener-policy": "same-origin",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }
    return PageFile(content, headers)


def _read() -> dict[str, PageFile]:
    folder = files("gateway") / "page"
    found = {
        each.name: _page_file(each.name, each.read_bytes())
        for each in folder.iterdir()
        if each.name[each.name.rfind(".") :] in _MEDIA_TYPES
    }
    index = found.pop(_INDEX)
    return {"/": index} | {f"/ui/{name}": file for name, file in sorted(found.items())}


PAGE_FILES: dict[str, PageFile] = _read()
"""Path -> file. All of them are public."""

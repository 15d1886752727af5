"""Forms with files (`multipart/form-data`), as jobs hold them: the body as the client sent it.

A job has no content type. That of a form names the boundary between its parts, and every part
begins with it: the first line of a body shows it, where nothing stands before the first part.
"""

from __future__ import annotations

import re

MEDIA_TYPE = b"multipart/form-data"
# RFC 2046; of its characters those that need no escape in a quoted string.
_FIRST_LINE = re.compile(rb"--([0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-])\r\n")


def boundary_in(body: bytes) -> bytes:
    """The boundary that a form's body begins with; empty if it begins otherwise."""
    match = _FIRST_LINE.match(body)
    return match[1] if match else b""


def content_type_of(body: bytes) -> bytes:
    """The content type of a form's body."""
    return MEDIA_TYPE + b'; boundary="' + boundary_in(body) + b'"'

"""Splits the body of a new batch, `{"requests": [{…}, …]}`, into its requests as it arrives.

It looks for brackets and quotes only: whether a request is valid JSON is for the parser to say.
"""

from __future__ import annotations

import re

from gateway.http.body import MAX_DEPTH
from shared.job.errors import BadRequest, BodyTooLarge

_HEAD = re.compile(rb'[ \t\n\r]*+\{[ \t\n\r]*+"requests"[ \t\n\r]*+:[ \t\n\r]*+\[')
_MOST_HEAD_BYTES = 1024
_SPACE = re.compile(rb"[ \t\n\r]*+")
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_ATOMS = rb'(?:[^"{}\[\]]++|%b)*+' % _STRING
_PLAIN = re.compile(rb"(?:[^\"{}\[\]]++|%b|[\[{]%b[\]}])*+" % (_STRING, _ATOMS), re.DOTALL)
"""Up to a bracket of what has further ones within, or to a text that does not end here."""
_TEXT = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
"""Up to the end of a text, or to a backslash behind which nothing has arrived."""
_QUOTE, _BACKSLASH, _OPEN, _COMMA = b'"\\{,'
_BEHIND = {_OPEN: b",]", _COMMA: b"{", ord("]"): b"}", ord("}"): b""}
"""What may come between two requests behind each character; `{`: the whole request."""


class RequestSplitter:
    """The body of one batch."""

    def __init__(self, most_bytes: int) -> None:
        """`most_bytes`: of one request."""
        self._most_bytes = most_bytes
        self._data = bytearray()  # from the beginning of what is not complete on
        self._at = 0  # up to here it was looked at
        self._in_list = False
        self._in_text = False
        self._depth = 0  # of brackets within a request; 0: between two
        self._expected = b"{]"  # what may come there
        self._found = 0

    def feed(self, part: bytes) -> list[bytes]:
        """The requests that are complete with this part. Raises BadRequest and BodyTooLarge."""
        self._data += part
        if not self._in_list and not self._begin_list():
            return []
        found, begun = [], 0
        while self._at < len(self._data):
            if self._depth == 0:
                begun = self._at = _end(_SPACE, self._data, self._at)
                if begun < len(self._data):
                    self._take(self._data[begun])
                continue
            self._scan()
            if self._depth:
                break
            found.append(bytes(self._data[begun : self._at]))
            self._found += 1
            begun = self._at
        if len(self._data) - begun > self._most_bytes or any(
            len(each) > self._most_bytes for each in found
        ):
            raise BodyTooLarge(f"A request of the batch is larger than {self._most_bytes} bytes.")
        del self._data[:begun]
        self._at -= begun
        return found

    def finish(self) -> None:
        """The body has ended. Raises BadRequest if it is not complete."""
        if not self._in_list:
            raise _no_list()
        if self._depth or self._expected:
            raise BadRequest("The body is not valid JSON: it ends too early.")

    def _begin_list(self) -> bool:
        head = _HEAD.match(self._data)
        if head is None:
            if len(self._data) > _MOST_HEAD_BYTES:
                raise _no_list()
            return False
        del self._data[: head.end()]
        self._in_list = True
        return True

    def _take(self, char: int) -> None:
        """A character between two requests."""
        if char not in self._expected:
            name = f"requests.{self._found}"
            if _OPEN in self._expected:
                raise BadRequest(f"{name}: must be an object.", name)
            if _COMMA in self._expected:
                raise BadRequest(f"The body is not valid JSON before {name}.", "requests")
            raise _no_list()
        self._at += 1
        if char == _OPEN:
            self._depth = 1
        self._expected = _BEHIND[char]

    def _scan(self) -> None:
        """Go on to the end of the request, or of what has arrived."""
        data, at, depth = self._data, self._at, self._depth
        while at < len(data) and depth:
            if self._in_text:
                at = _end(_TEXT, data, at)
                if at == len(data) or data[at] == _BACKSLASH:
                    break
                self._in_text = False
                at += 1
            at = _end(_PLAIN, data, at)
            if at == len(data):
                break
            char = data[at]
            at += 1
            if char == _QUOTE:
                self._in_text = True
                continue
            depth += 1 if char in b"{[" else -1
            if depth > MAX_DEPTH:
                raise BadRequest(
                    f"requests.{self._found} is nested too deeply: more than {MAX_DEPTH} levels."
                )
        self._at, self._depth = at, depth


def _end(pattern: re.Pattern[bytes], data: bytearray, at: int) -> int:
    """Where the text that matches at `at` ends."""
    match = pattern.match(data, at)
    return match.end() if match else at


def _no_list() -> BadRequest:
    return BadRequest('The body must be `{"requests": [...]}`, without other fields.', "requests")

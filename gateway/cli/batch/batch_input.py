"""The input of `flotilla batch run`: checked and completed line by line, never held in memory.

A line that is only a body gets method, url and its number as `custom_id`. What is sent is the
same at each run, so that an upload goes on where it stopped: `Mark` says where its parts begin.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec

MAX_LINE_BYTES = 32 << 20
"""The gateway's limit may be lower; this one bounds the memory of the check."""
MAX_ERRORS = 100
_MAX_IDS = 250_000
"""Lines that are searched for duplicate ids here; the gateway searches all."""
_MAX_ID_CHARS = 512
CHAT = "/v1/chat/completions"
_BOM = b"\xef\xbb\xbf"
_DECODER = msgspec.json.Decoder()
_OUTER = ("custom_id", "method", "url")


class LineRefused(Exception):
    """A line that no batch takes; `code` is the gateway's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class InputError(NamedTuple):
    """What is wrong with a line."""

    line: int
    code: str
    message: str


class Mark(NamedTuple):
    """Where a part of what is sent begins: some bytes into what is made of a line."""

    offset: int
    number: int
    skip: int


class SentLine(NamedTuple):
    """A line as it is sent."""

    number: int
    """From 1, blank lines too."""
    offset: int
    """In the input."""
    custom_id: str
    """Empty: a blank line."""
    url: str
    data: bytes


@dataclass
class Checked:
    """The result of a check."""

    lines: int = 0
    bytes: int = 0
    """Of what is sent."""
    endpoint: str = ""
    marks: list[Mark] = field(default_factory=list)
    errors: list[InputError] = field(default_factory=list)


class BatchInput:
    """A file of requests. `endpoint`: empty for that of its first line, or chat completions.

    `wanted`: says of a custom_id whether its line is sent; None: all are.
    """

    def __init__(
        self,
        path: Path,
        endpoint: str = "",
        model: str = "",
        wanted: Callable[[str], bool] | None = None,
    ) -> None:
        self.path = path
        self.endpoint = endpoint
        self._model = model
        self._wanted = wanted

    def only(self, wanted: Callable[[str], bool]) -> BatchInput:
        """The same file, of which only these lines are sent."""
        return BatchInput(self.path, self.endpoint, self._model, wanted)

    def check(self, part_bytes: int) -> Checked:
        """Read the whole file: what is wrong with it, and where parts of so many bytes begin."""
        found, ids = Checked(), dict[str, int]()
        for number, offset, raw in self._raw_lines(0, 1):
            if len(found.errors) >= MAX_ERRORS:
                break
            try:
                line = self._line(number, offset, raw)
                if line.custom_id:
                    self._check_line(line, ids)
            except LineRefused as error:
                found.errors.append(InputError(number, error.code, str(error)))
                continue
            if line.custom_id and self._wanted and not self._wanted(line.custom_id):
                continue
            end = found.bytes + len(line.data)
            while len(found.marks) * part_bytes < end:
                skip = len(found.marks) * part_bytes - found.bytes
                found.marks.append(Mark(offset, number, skip))
            found.bytes = end
            found.lines += bool(line.custom_id)
        if not found.lines and not found.errors:
            found.errors.append(InputError(0, "empty_file", "The file has no lines."))
        found.endpoint = self.endpoint or CHAT
        return found

    def lines(self) -> Iterator[SentLine]:
        """The lines that are sent, of a file that was checked; blank ones are left out."""
        for line in self._sent(0, 1):
            if line.custom_id:
                yield line

    def part(self, mark: Mark, n_bytes: int) -> Iterator[bytes]:
        """The bytes of a part of what is sent, some at a time."""
        skip, left = mark.skip, n_bytes
        for line in self._sent(mark.offset, mark.number):
            data = line.data[skip : skip + left]
            skip = max(0, skip - len(line.data))
            left -= len(data)
            if data:
                yield data
            if not left:
                return

    def _sent(self, offset: int, number: int) -> Iterator[SentLine]:
        for each, at, raw in self._raw_lines(offset, number):
            line = self._line(each, at, raw)
            if not line.custom_id or self._wanted is None or self._wanted(line.custom_id):
                yield line

    def _raw_lines(self, offset: int, number: int) -> Iterator[tuple[int, int, bytes]]:
        with self.path.open("rb") as file:
            file.seek(offset)
            while raw := file.readline(MAX_LINE_BYTES + 1):
                size = len(raw)
                rest = raw
                while size > MAX_LINE_BYTES and rest and not rest.endswith(b"\n"):
                    rest = file.readline(MAX_LINE_BYTES)
                    size += len(rest)
                yield number, offset, raw
                offset, number = offset + size, number + 1

    def _line(self, number: int, offset: int, raw: bytes) -> SentLine:
        """A line as it is sent. Raises LineRefused."""
        if len(raw) > MAX_LINE_BYTES:
            _bad("line_too_large", f"The line has more than {MAX_LINE_BYTES >> 20} MiB.")
        text = (raw.removeprefix(_BOM) if number == 1 else raw).strip()
        if not text:
            return SentLine(number, offset, "", "", b"\n")
        fields = _parsed(text)
        if any(name in fields for name in _OUTER):
            for name in (*_OUTER, "body"):
                if name not in fields:
                    _bad("missing_required_parameter", f"The line has no `{name}`.")
            custom_id, url, body = fields["custom_id"], fields["url"], fields["body"]
            self.endpoint = self.endpoint or (url if isinstance(url, str) else "")
            _check_outer(fields, self.endpoint)
        else:
            self.endpoint = self.endpoint or CHAT
            custom_id, url, body = str(number), self.endpoint, fields
            head = {"custom_id": custom_id, "method": "POST", "url": url}
            text = json.dumps(head).encode()[:-1] + b', "body": ' + text + b"}"
        if body.get("stream"):
            _bad("stream_not_supported", "A line of a batch can't be streamed.")
        if self._model:
            outer = {"custom_id": custom_id, "method": "POST", "url": url}
            text = json.dumps(outer | {"body": body | {"model": self._model}}).encode()
        return SentLine(number, offset, custom_id, url, text + b"\n")

    def _check_line(self, line: SentLine, ids: dict[str, int]) -> None:
        """Raises LineRefused if an earlier line has its id."""
        if (before := ids.get(line.custom_id)) is not None:
            _bad(
                "duplicate_custom_id",
                f"`custom_id` {line.custom_id[:64]!r} is that of line {before}, too.",
            )
        if len(ids) < _MAX_IDS:
            ids[line.custom_id] = line.number


def _check_outer(fields: dict[str, Any], endpoint: str) -> None:
    """What is around the body. Raises LineRefused."""
    custom_id, body = fields["custom_id"], fields["body"]
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= _MAX_ID_CHARS:
        _bad("invalid_custom_id", f"`custom_id` is no text of 1 to {_MAX_ID_CHARS} characters.")
    if fields["method"] != "POST":
        _bad("invalid_method", "`method` is not `POST`.")
    if fields["url"] != endpoint:
        _bad("invalid_url", f"`url` is not {endpoint}: a batch has one endpoint.")
    if not isinstance(body, dict):
        _bad("invalid_json_line", "`body` is no JSON object.")


def _parsed(text: bytes) -> dict[str, Any]:
    """The JSON object of a line. Raises LineRefused."""
    try:
        fields = _DECODER.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise LineRefused("invalid_json_line", f"The line is no JSON: {error}.") from error
    if not isinstance(fields, dict):
        _bad("invalid_json_line", "The line is no JSON object.")
    return fields


def _bad(code: str, message: str) -> NoReturn:
    raise LineRefused(code, message)

"""The input of `flotilla batch run`: checked and completed line by line, never held in memory.

A line that is only a body gets method, url and its number as `custom_id`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from shared.batches.line_check import (
    MOST_ERRORS,
    MOST_LINES,
    OUTER,
    BadLine,
    check_body,
    check_fields,
    line_object,
)

MAX_LINE_BYTES = 32 << 20
"""The gateway's limit may be lower; this one bounds the memory of the check."""
_MAX_IDS = 250_000
"""Lines that are searched for duplicate ids here; the gateway searches all."""
CHAT = "/v1/chat/completions"
_BOM = b"\xef\xbb\xbf"


class InputError(NamedTuple):
    """What is wrong with a line."""

    line: int
    code: str
    message: str


class SentLine(NamedTuple):
    """A line as it is sent."""

    number: int
    """From 1, blank lines too."""
    custom_id: str
    """Empty: a blank line."""
    data: bytes


@dataclass
class Checked:
    """The result of a check."""

    lines: int = 0
    bytes: int = 0
    """Of what is sent."""
    endpoint: str = ""
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
        self.model = model
        self._wanted = wanted

    def only(self, wanted: Callable[[str], bool]) -> BatchInput:
        """The same file, of which only these lines are sent."""
        return BatchInput(self.path, self.endpoint, self.model, wanted)

    def check(self) -> Checked:
        """Read the whole file: what is wrong with it, and how much is sent."""
        found, ids = Checked(), dict[str, int]()
        for number, raw in self._raw_lines():
            if len(found.errors) >= MOST_ERRORS:
                break
            try:
                line = self._line(number, raw)
                if line.custom_id:
                    self._check_line(line, ids)
            except BadLine as error:
                found.errors.append(InputError(number, error.code, str(error)))
                continue
            if line.custom_id and self._wanted and not self._wanted(line.custom_id):
                continue
            if found.lines == MOST_LINES:
                message = f"A file may have {MOST_LINES} lines at most."
                found.errors.append(InputError(number, "too_many_lines", message))
                break
            found.bytes += len(line.data)
            found.lines += bool(line.custom_id)
        if not found.lines and not found.errors:
            found.errors.append(InputError(0, "empty_file", "The file has no lines."))
        found.endpoint = self.endpoint or CHAT
        return found

    def data(self) -> Iterator[bytes]:
        """What is sent of a file that was checked, line by line."""
        for number, raw in self._raw_lines():
            line = self._line(number, raw)
            if not line.custom_id or self._wanted is None or self._wanted(line.custom_id):
                yield line.data

    def _raw_lines(self) -> Iterator[tuple[int, bytes]]:
        number = 1
        with self.path.open("rb") as file:
            while raw := file.readline(MAX_LINE_BYTES + 1):
                if len(raw) > MAX_LINE_BYTES:
                    rest = raw
                    while rest and not rest.endswith(b"\n"):
                        rest = file.readline(MAX_LINE_BYTES)
                yield number, raw
                number += 1

    def _line(self, number: int, raw: bytes) -> SentLine:
        """A line as it is sent. Raises BadLine."""
        if len(raw) > MAX_LINE_BYTES:
            most = MAX_LINE_BYTES >> 20
            raise BadLine("line_too_large", f"This line has more than {most} MiB.")
        text = (raw.removeprefix(_BOM) if number == 1 else raw).strip()
        if not text:
            return SentLine(number, "", b"\n")
        fields = line_object(text)
        if any(name in fields for name in OUTER):
            url = fields.get("url")
            self.endpoint = self.endpoint or (url if isinstance(url, str) else "")
            custom_id, body = check_fields(fields, self.endpoint)
            url = self.endpoint
        else:
            self.endpoint = self.endpoint or CHAT
            check_body(fields, self.endpoint)
            custom_id, url, body = str(number), self.endpoint, fields
            head = {"custom_id": custom_id, "method": "POST", "url": url}
            text = json.dumps(head).encode()[:-1] + b', "body": ' + text + b"}"
        if self.model:
            outer = {"custom_id": custom_id, "method": "POST", "url": url}
            text = json.dumps(outer | {"body": body | {"model": self.model}}).encode()
        return SentLine(number, custom_id, text + b"\n")

    def _check_line(self, line: SentLine, ids: dict[str, int]) -> None:
        """Raises BadLine if an earlier line has its id."""
        if (before := ids.get(line.custom_id)) is not None:
            message = f"The `custom_id` {line.custom_id[:100]!r} of line {before} is there again."
            raise BadLine("duplicate_custom_id", message)
        if len(ids) < _MAX_IDS:
            ids[line.custom_id] = line.number

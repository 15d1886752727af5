"""A body that is a form with a file: its fields, parsed once. The file itself is not read.

A file that is stored is taken out of its form as it arrives: streamed_form.py.

vLLM parses the form again, with the same library through Starlette; both must understand the same,
so that names that are there twice are refused.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.types import Scope

from gateway.http.body import in_thread
from shared.api.multipart import boundary_in
from shared.job.errors import BadRequest

T = TypeVar("T")

_MAX_PARTS = 64
_MAX_FIELD_BYTES = 1 << 16
_SMALL_BYTES = 1 << 16

# It warns of every invalid form, which is answered with an error.
logging.getLogger("python_multipart").setLevel(logging.ERROR)


async def parse_form(body: bytes, scope: Scope, use: Callable[[dict[str, Any]], T]) -> T:
    """Call `use` with the text fields of a form that the gateway checks, and return its result.

    `use` is called in a thread if the form is large. Raises BadRequest, and what `use` raises.
    """
    boundary = _checked_boundary(body, scope)
    if len(body) <= _SMALL_BYTES:
        return use(fields_of(body, boundary))
    return await in_thread(lambda: use(fields_of(body, boundary)))


def without_boundary(body: bytes) -> bytes:
    """The form without its boundary, of which clients make a new one each time they send a form."""
    return body.replace(boundary_in(body), b"")


def fields_of(body: bytes, boundary: bytes) -> dict[str, Any]:
    """The fields of a form whose parts have this boundary. Raises BadRequest."""
    form = Form()
    parser = form.parser(boundary)
    with valid_form():
        parser.write(body)
        parser.finalize()
    form.check_ended()
    fields = form.fields
    fields.pop("response_format", None)  # in JSON it is a schema, here the name of a format
    return fields


@contextlib.contextmanager
def valid_form() -> Iterator[None]:
    """Raise the parser's errors as BadRequest."""
    try:
        yield
    except FormParserError as error:
        raise BadRequest(f"The body is not a valid form: {error}") from error


def boundary_of(scope: Scope) -> bytes:
    """What stands between the parts of a form, by its content type; empty: that does not say."""
    header = dict(scope["headers"]).get(b"content-type", b"")
    _, options = parse_options_header(header)
    return options.get(b"boundary", b"")


def _checked_boundary(body: bytes, scope: Scope) -> bytes:
    boundary = boundary_of(scope)
    if not boundary or boundary_in(body) != boundary:
        raise BadRequest(
            "The form must begin with its boundary, which `Content-Type` names: "
            "multipart/form-data; boundary=<at most 70 characters>."
        )
    return boundary


class Form:
    """Gathers the fields that the parser finds; a subclass may take a file."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self._ended = False
        self._names: set[str] = set()
        self._n_parts = 0
        self._header, self._value = b"", b""
        self._disposition = b""
        self._name = ""
        self._is_file = False
        self._text = bytearray()

    def begin_file(self, name: str, filename: bytes) -> None:
        """A part that is a file begins."""

    def add_file_data(self, data: bytes) -> None:
        """Some of its bytes."""

    def check_ended(self) -> None:
        """Raise BadRequest if the form has not ended."""
        if not self._ended:
            raise BadRequest("The body is not a valid form: its last part does not end.")

    def parser(self, boundary: bytes) -> MultipartParser:
        """What calls the methods below. `valid_form` has its errors."""
        callbacks: dict[str, Callable[..., None]] = {
            "on_part_begin": self._begin_part,
            "on_header_field": self._add_to_header,
            "on_header_value": self._add_to_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_headers,
            "on_part_data": self._add_data,
            "on_part_end": self._end_part,
            "on_end": self._end,
        }
        return MultipartParser(boundary, callbacks)  # type: ignore[arg-type]

    def _begin_part(self) -> None:
        self._n_parts += 1
        if self._n_parts > _MAX_PARTS:
            raise BadRequest(f"A form may have at most {_MAX_PARTS} parts.")
        self._disposition = b""
        self._text.clear()

    def _add_to_header(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _add_to_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header, self._value = b"", b""

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name")
        if name is None:
            raise BadRequest("Each part of a form needs a `Content-Disposition` with its name.")
        self._name, self._is_file = decoded(name), b"filename" in options
        if self._name in self._names and not self._name.endswith("[]"):
            raise BadRequest(f"`{self._name[:64]}` is there twice.", self._name[:64])
        self._names.add(self._name)
        if self._is_file:
            self.begin_file(self._name, options[b"filename"])

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self.add_file_data(data[start:end])
            return
        if len(self._text) + end - start > _MAX_FIELD_BYTES:
            raise BadRequest(
                f"A field of a form may have at most {_MAX_FIELD_BYTES} bytes.", self._name[:64]
            )
        self._text += data[start:end]

    def _end_part(self) -> None:
        if not self._is_file:
            self.fields[self._name] = decoded(bytes(self._text))

    def _end(self) -> None:
        self._ended = True


def decoded(text: bytes) -> str:
    """A text of a form. Raises BadRequest."""
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequest("The form is not UTF-8.") from error

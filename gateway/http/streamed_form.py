"""A form with one file that is passed on as it arrives, with its other fields in any order."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from starlette.types import Receive, Scope

from gateway.http.body import check_type
from gateway.http.body_parts import BodyParts
from gateway.http.form import Form, boundary_of, decoded, valid_form
from shared.api.endpoint import BodyKind
from shared.job.errors import BadRequest

_CHUNK_BYTES = 1 << 18
"""About how much of a file is passed on at once: each chunk costs a step to a thread and back."""
_MAX_NAME_BYTES = 512


class StreamedForm:
    """The form of one request."""

    def __init__(self, scope: Scope, receive: Receive, file_field: str, silence_s: float) -> None:
        """`file_field`: the name of its file. `silence_s`: longest time without a byte."""
        self._scope = scope
        self.body = BodyParts(scope, receive, silence_s)
        self._form = _FormWithFile(file_field)

    @property
    def fields(self) -> dict[str, str]:
        """The text fields so far; all of them after the file's last chunk."""
        return self._form.fields

    @property
    def filename(self) -> str:
        """That of the file, once it has begun."""
        return self._form.filename or ""

    async def file(self) -> AsyncGenerator[bytes, None]:
        """The file's bytes in chunks. The whole form has been read when they end.

        Raises UnsupportedMediaType, BodyTimeout, and BadRequest for what is no such form.
        """
        headers = dict(self._scope["headers"])
        check_type(headers, BodyKind.MULTIPART)
        form, boundary = self._form, boundary_of(self._scope)
        if not boundary:
            raise BadRequest("The header `Content-Type` names no boundary of the form's parts.")
        parser = form.parser(boundary)
        async for data in self.body.all():
            with valid_form():
                parser.write(data)
            if len(form.data) >= _CHUNK_BYTES:
                yield form.take()
        with valid_form():
            parser.finalize()
        form.check_ended()
        if form.filename is None:
            name = form.file_field
            raise BadRequest(f"`{name}` is missing: a part with a `filename`.", name)
        if form.data:
            yield form.take()


class _FormWithFile(Form):
    def __init__(self, file_field: str) -> None:
        super().__init__()
        self.file_field = file_field
        self.filename: str | None = None
        self.data = bytearray()

    def begin_file(self, name: str, filename: bytes) -> None:
        if name != self.file_field:
            raise BadRequest(f"The only file of this form is `{self.file_field}`.", name[:64])
        if len(filename) > _MAX_NAME_BYTES:
            raise BadRequest(f"A file's name may have at most {_MAX_NAME_BYTES} bytes.", name)
        self.filename = decoded(filename)

    def add_file_data(self, data: bytes) -> None:
        self.data += data

    def take(self) -> bytes:
        """The data so far."""
        data, self.data = bytes(self.data), bytearray()
        return data

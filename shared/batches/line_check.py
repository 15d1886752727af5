"""The structure of a line of a batch's input: what has to be right before any line runs.

The gateway's side and `flotilla batch run` check with it. The fields of a line's body are checked
when it is submitted (`gateway/core/call.py`): what is wrong there is that line's own error.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec

from shared.api.endpoint import StreamFormat
from shared.api.endpoints import ENDPOINTS
from shared.batches.batch import LineError

MOST_LINES = 1_000_000
"""Of one file."""
MOST_LINE_BYTES = 8 << 20
"""Of the body in one line: maintenance parses it, with less memory than a gateway has."""
MOST_ERRORS = 100
"""Of one file that are told."""
_MOST_ID_CHARS = 512
_SMALL_BYTES = 1 << 16
"""A larger line is not decoded as a whole: its values could take forty times as much memory."""
_DECODER = msgspec.json.Decoder()
OUTER = ("custom_id", "method", "url")
"""The fields around the body."""
_WITH_STATE = frozenset(
    row.path for row in ENDPOINTS.values() if row.stream is StreamFormat.RESPONSE_EVENTS
)
_STATEFUL = ("background", "conversation", "previous_response_id")
"""Fields of a response that a gateway acts on. No gateway stores the answers of a batch."""


class BadLine(Exception):
    """What is wrong with a line. `code` is in OpenAI's words."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param

    def at(self, line: int) -> LineError:
        """As the error of the line with this number."""
        return LineError(self.code, str(self), line, self.param)


class _Body(msgspec.Struct):
    model: str = ""
    stream: bool | None = None


class _RightLine(msgspec.Struct):
    custom_id: Annotated[str, msgspec.Meta(min_length=1, max_length=_MOST_ID_CHARS)]
    method: Literal["POST"]
    url: str
    body: _Body


_right_line = msgspec.json.Decoder(_RightLine).decode


def check_line(
    data: bytes, endpoint: str, is_known: Callable[[str], bool]
) -> tuple[str, str | None]:
    """The custom id of a line, and the model that it names. Raises BadLine.

    `endpoint`: of the batch. `is_known`: whether a model of this name exists; empty: the default.
    """
    # Most lines are right. It takes half the time to see that than to look for what is wrong.
    # msgspec does not decode the texts that it skips, so they must have nothing to be decoded.
    if endpoint not in _WITH_STATE and data.isascii() and b"\\u" not in data:
        try:
            right = _right_line(data)
        except (ValueError, RecursionError):
            pass
        else:
            if right.url == endpoint and not right.body.stream and is_known(right.body.model):
                return right.custom_id, right.body.model or None
    line = line_object(data) if len(data) <= _SMALL_BYTES else _large_line_object(data)
    custom_id, body = check_fields(line, endpoint)
    model = body.get("model", "")
    if type(model) is str and not is_known(model):
        what = (
            f"The model {model[:100]!r} does not exist."
            if model
            else "The line names no model, and the fleet has no default."
        )
        raise BadLine("model_not_found", what, "model")
    return custom_id, model if type(model) is str and model else None


def line_object(data: bytes) -> dict[str, Any]:
    """The JSON object of a line. Raises BadLine."""
    try:
        line = _DECODER.decode(data)
    except (ValueError, RecursionError) as error:
        raise BadLine("invalid_json_line", f"This line is not valid JSON: {error}.") from error
    if type(line) is not dict:
        raise BadLine("invalid_json_line", "This line is not a JSON object.")
    return line


class _LargeBody(msgspec.Struct):
    model: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    stream: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    background: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    conversation: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    previous_response_id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _LargeLine(msgspec.Struct):
    custom_id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    method: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    url: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    body: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_large_line = msgspec.json.Decoder(_LargeLine).decode
_large_body = msgspec.json.Decoder(_LargeBody).decode


def _large_line_object(data: bytes) -> dict[str, Any]:
    """The fields of a line that are checked, and in its body those of the body. Raises BadLine."""
    try:
        check_text = getincrementaldecoder("utf-8")()
        for at in range(0, len(data), _SMALL_BYTES):
            check_text.decode(data[at : at + _SMALL_BYTES])
        check_text.decode(b"", final=True)
        line = _fields(_large_line(data))
        body = line.get("body")
        if isinstance(body, msgspec.Raw) and bytes(memoryview(body)[:1]) == b"{":
            line["body"] = _fields(_large_body(body))
    except msgspec.ValidationError as error:
        raise BadLine("invalid_json_line", "This line is not a JSON object.") from error
    except (ValueError, RecursionError) as error:
        raise BadLine("invalid_json_line", f"This line is not valid JSON: {error}.") from error
    return line


def _fields(found: _LargeLine | _LargeBody) -> dict[str, Any]:
    """Those that are there; large lists and objects as they were sent."""
    raw = {name: getattr(found, name) for name in found.__struct_fields__}
    return {
        name: _DECODER.decode(value)
        if len(value) <= _SMALL_BYTES or bytes(memoryview(value)[:1]) == b'"'
        else value
        for name, value in raw.items()
        if value is not msgspec.UNSET
    }


def check_fields(line: dict[str, Any], endpoint: str) -> tuple[str, dict[str, Any]]:
    """The custom id and the body of a line that goes to this endpoint. Raises BadLine."""
    for name in (*OUTER, "body"):
        if name not in line:
            raise BadLine("missing_required_parameter", f"`{name}` is missing.", name)
    custom_id, body = line["custom_id"], line["body"]
    if type(custom_id) is not str or not 0 < len(custom_id) <= _MOST_ID_CHARS:
        text = f"`custom_id` must be a text of 1 to {_MOST_ID_CHARS} characters."
        raise BadLine("invalid_custom_id", text, "custom_id")
    if line["method"] != "POST":
        raise BadLine("invalid_method", "`method` must be POST.", "method")
    if line["url"] != endpoint:
        raise BadLine("invalid_url", f"`url` must be {endpoint}, as for the whole batch.", "url")
    if type(body) is not dict:
        raise BadLine("invalid_json_line", "`body` must be an object.", "body")
    check_body(body, endpoint)
    return custom_id, body


def check_body(body: dict[str, Any], endpoint: str) -> None:
    """Refuse what no line may ask for. Raises BadLine."""
    if body.get("stream"):
        raise BadLine("stream_not_supported", "Answers of a batch can't be streamed.", "stream")
    if endpoint not in _WITH_STATE:
        return
    for name in _STATEFUL:
        if body.get(name):
            message = f"`{name}` is not supported in a batch: its answers are not stored."
            raise BadLine("stored_response_not_supported", message, name)


class Line(msgspec.Struct):
    """What is used of a line that was checked."""

    custom_id: str
    body: msgspec.Raw
    """As it was sent."""


parse_line = msgspec.json.Decoder(Line).decode
"""Parses a line that was checked."""

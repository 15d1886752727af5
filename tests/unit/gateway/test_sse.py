"""Server-sent events: every byte that the gateway puts around a chunk."""

from __future__ import annotations

import json

import pytest

from gateway.http import server_events as sse
from shared.api.endpoint import ErrorStyle
from shared.job.errors import WorkerLost


def test_a_comment_is_one_line_that_clients_ignore() -> None:
    assert sse.comment("queued, position 3") == b": queued, position 3\n"


def test_an_error_is_openais_object_without_done() -> None:
    event = sse.error(WorkerLost("The worker\nis gone."))
    assert event.startswith(b"data: {")
    assert event.count(b"\n") == 2
    assert json.loads(event.removeprefix(b"data: "))["error"]["code"] == "worker_lost"
    assert b"[DONE]" not in event


def test_an_error_for_anthropics_sdk_is_a_named_event() -> None:
    event = sse.error(WorkerLost("gone"), ErrorStyle.ANTHROPIC)
    name, data, *rest = event.split(b"\n")
    assert (name, rest) == (b"event: error", [b"", b""])
    error = json.loads(data.removeprefix(b"data: "))["error"]
    assert error == {"type": "api_error", "message": "gone", "code": "worker_lost"}


@pytest.mark.parametrize(
    ("event_id", "expected"),
    [
        ("", b'event: queued\ndata: {"a": "\xc3\xbc\\n"}\n\n'),
        ("7.2", b'event: queued\nid: 7.2\ndata: {"a": "\xc3\xbc\\n"}\n\n'),
    ],
)
def test_an_event_has_a_name_one_line_of_data_and_an_id_if_given(
    event_id: str, expected: bytes
) -> None:
    assert sse.event("queued", {"a": "ü\n"}, event_id) == expected


@pytest.mark.parametrize(
    ("chunk", "data"),
    [
        (b"", []),
        (b"data: {}\n\n", [b"{}"]),
        (b"data: 1\n\ndata: 2\n\n", [b"1", b"2"]),
        (b'data: {"a":"\\n\\n"}\n\ndata: [DONE]\n\n', [b'{"a":"\\n\\n"}', b"[DONE]"]),
        (b"data: data: x\n\n", [b"data: x"]),
        (b"event: a\ndata: 1\n\ndata: 2\n\nevent: b\ndata: 3\n\n", [b"1", b"2", b"3"]),
    ],
)
def test_a_chunk_is_split_into_the_data_of_its_events(chunk: bytes, data: list[bytes]) -> None:
    assert sse.split(chunk) == data

"""The load client's parser counts the same however a response is split into reads."""

from __future__ import annotations

import pytest

from load_tests.clients.response_parser import ResponseParser

EVENTS = (
    b'data: {"delta":{"role":"assistant"}}\n\n',
    b'data: {"delta":{"content":"10"}}\n\ndata: {"delta":{"content":" ships"}}\n\n',
    b"data: [DONE]\n\n",
)
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
STREAM = HEAD + b"".join(b"%x\r\n%s\r\n" % (len(e), e) for e in EVENTS) + b"0\r\n\r\n"
JSON_RESPONSE = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 21\r\n\r\n"
    b'{"a": "data: [DONE]"}'
)


def parse(raw: bytes, size: int) -> ResponseParser:
    response = ResponseParser()
    for at in range(0, len(raw), size):
        assert not response.done, "no bytes may follow the end"
        response.feed(raw[at : at + size])
    return response


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 7, 11, 40, len(STREAM)])
def test_events_are_counted_once_wherever_a_read_ends(size: int) -> None:
    response = parse(STREAM, size)
    assert (response.status, response.events, response.done) == (200, 4, True)


def test_feed_returns_the_number_of_new_events() -> None:
    response = ResponseParser()
    end = len(HEAD) + 4
    assert response.feed(STREAM[:end]) == 0
    assert response.started
    assert response.feed(STREAM[end : end + 6]) == 1
    assert response.feed(STREAM[end + 6 :]) == 3


@pytest.mark.parametrize("size", [1, 2, 7, len(JSON_RESPONSE)])
def test_a_json_body_is_kept_and_has_no_events(size: int) -> None:
    response = parse(JSON_RESPONSE, size)
    assert response.body == b'{"a": "data: [DONE]"}'
    assert (response.events, response.done, response.closing) == (0, True, False)


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_the_end_of_a_chunked_json_error_is_found(size: int) -> None:
    raw = (
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        b'b\r\n{"error":1}\r\n0\r\n\r\n'
    )
    response = parse(raw, size)
    assert (response.status, response.done, response.closing) == (503, True, True)
    assert b'{"error":1}' in response.body


@pytest.mark.parametrize("size", [1, 1000])
def test_the_end_of_an_empty_chunked_response_is_found(size: int) -> None:
    assert parse(HEAD + b"0\r\n\r\n", size).done


def test_a_response_of_length_0_ends_with_its_head() -> None:
    assert parse(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", 1).done


def test_a_response_of_unknown_length_ends_with_the_connection() -> None:
    response = parse(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + EVENTS[2], 3)
    assert not response.done
    response.end()
    assert (response.events, response.done) == (1, True)


def test_a_truncated_stream_is_not_done() -> None:
    response = parse(STREAM[:-7], 9)
    response.end()
    assert not response.done

"""The load client's parser: however an answer is cut up, it counts the same."""

from __future__ import annotations

import pytest

from load_tests.clients.response_parser import Answer

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
WHOLE = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 21\r\n\r\n"
    b'{"a": "data: [DONE]"}'
)


def fed(raw: bytes, size: int) -> Answer:
    answer = Answer()
    for at in range(0, len(raw), size):
        assert not answer.done, "nothing may follow the end"
        answer.feed(raw[at : at + size])
    return answer


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 7, 11, 40, len(STREAM)])
def test_events_of_a_stream_are_counted_once_wherever_it_is_cut(size: int) -> None:
    answer = fed(STREAM, size)
    assert (answer.status, answer.events, answer.done) == (200, 4, True)


def test_feed_tells_what_is_new() -> None:
    answer = Answer()
    end = len(HEAD) + 4
    assert answer.feed(STREAM[:end]) == 0
    assert answer.started
    assert answer.feed(STREAM[end : end + 6]) == 1
    assert answer.feed(STREAM[end + 6 :]) == 3


@pytest.mark.parametrize("size", [1, 2, 7, len(WHOLE)])
def test_a_whole_answer_is_kept_and_has_no_events(size: int) -> None:
    answer = fed(WHOLE, size)
    assert answer.body == b'{"a": "data: [DONE]"}'
    assert (answer.events, answer.done, answer.closing) == (0, True, False)


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_an_error_that_is_chunked_json_ends_too(size: int) -> None:
    raw = (
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        b'b\r\n{"error":1}\r\n0\r\n\r\n'
    )
    answer = fed(raw, size)
    assert (answer.status, answer.done, answer.closing) == (503, True, True)
    assert b'{"error":1}' in answer.body


@pytest.mark.parametrize("size", [1, 1000])
def test_an_empty_chunked_answer_ends(size: int) -> None:
    assert fed(HEAD + b"0\r\n\r\n", size).done


def test_an_empty_answer_with_a_length_ends_with_its_head() -> None:
    assert fed(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", 1).done


def test_an_answer_of_unknown_length_ends_with_its_connection() -> None:
    answer = fed(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + EVENTS[2], 3)
    assert not answer.done
    answer.end()
    assert (answer.events, answer.done) == (1, True)


def test_a_stream_that_is_cut_off_is_not_done() -> None:
    answer = fed(STREAM[:-7], 9)
    answer.end()
    assert not answer.done

"""The output buffer: numbering, counting and encoding of one job's output."""

from __future__ import annotations

import pytest

from shared.job.frames import DeltaDecoder, entry_of
from shared.job.job_log import Delta, Prompt
from shared.store.redis.scripts.emit import make_step
from tests.unit.steps import SentOutput, parse_step
from tests.unit.worker.buffers import RESULT, make_buffer
from worker.core.output_buffer import OutputBuffer


def taken(buffer: OutputBuffer, *, finish: bool = False) -> SentOutput:
    """What the buffer sends now."""
    output = buffer.take(RESULT if finish else None)
    assert output is not None
    return parse_step(make_step([output])).outputs[buffer.job.id]


def test_entries_are_numbered_from_one() -> None:
    buffer = make_buffer()
    assert buffer.take() is None
    for seq in (1, 2, 3):
        buffer.chunk(b"x")
        output = taken(buffer)
        assert (output.seq, output.chunks, output.journal, output.end) == (seq, b"x", [], None)
        assert buffer.take() is None


def test_tokens_are_counted_over_all_calls() -> None:
    buffer = make_buffer()
    buffer.prompt(0, 3)
    buffer.prompt(1, 4)
    buffer.delta(0, 0, [1, 2], "ab")
    buffer.delta(1, 1, [3], "c")
    buffer.take()
    buffer.delta(1, 0, [], "")
    assert (buffer.prompt_tokens, buffer.completion_tokens) == (7, 3)


def test_notifies_once_per_take() -> None:
    notified: list[OutputBuffer] = []
    buffer = make_buffer(notify=notified.append)
    buffer.prompt(0, 3)
    assert notified == []
    buffer.delta(0, 0, [1], "a")
    buffer.chunk(b"a")
    assert notified == [buffer]
    buffer.take()
    buffer.chunk(b"b")
    buffer.chunk(b"c")
    assert notified == [buffer, buffer]


def test_a_prompt_is_sent_with_the_first_delta() -> None:
    buffer = make_buffer()
    buffer.prompt(0, 12)
    assert buffer.reached_engine
    buffer.delta(0, 0, [1], "x")
    output = taken(buffer)
    assert output.journal == [Prompt(0, 12), Delta(0, 0, (1,), "x")]
    assert output.chunks == b""


def test_a_prompt_without_a_token_is_sent_with_the_result() -> None:
    buffer = make_buffer()
    buffer.prompt(0, 5)
    output = taken(buffer, finish=True)
    assert (output.seq, output.journal, output.answer) == (1, [Prompt(0, 5)], RESULT)


def test_a_streamed_token_takes_hardly_more_bytes_than_its_text() -> None:
    buffer, decoder = make_buffer(), DeltaDecoder()
    sizes = []
    for n, text in enumerate("abcdef"):
        chunk = b'data: {"id": "chatcmpl-%s", "text": "%c", "more": null}' % (b"0" * 99, ord(text))
        buffer.delta(0, 0, [n], text)
        buffer.chunk(chunk)
        output = taken(buffer)
        assert output.entry
        assert decoder.decode(output.entry.items) == chunk
        assert output.journal == [Delta(0, 0, (n,), text)]
        sizes.append(len(entry_of(buffer.unflushed[-1], "a", n + 1)))
    assert sizes[0] > 100
    assert sizes[2:] == [len("[") + len("'x") + len("n")] * 4


@pytest.mark.parametrize("outputs", [0, 1, 3])
def test_the_final_entry_carries_all_unflushed_entries(outputs: int) -> None:
    buffer = make_buffer()
    for _ in range(outputs):
        buffer.chunk(b"x")
        buffer.take()
    output = taken(buffer, finish=True)
    assert output.entry is None
    assert output.end
    assert [entry.seq for entry in output.end.before] == list(range(1, outputs + 1))
    assert output.end.seq == outputs + 1
    assert buffer.unflushed == []


def test_a_discarded_buffer_sends_nothing() -> None:
    buffer = make_buffer()
    buffer.chunk(b"x")
    buffer.discarded = True
    assert buffer.take() is None
    assert buffer.take(RESULT) is None

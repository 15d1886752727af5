"""Chunk templates: decoding gives the same bytes, and an encoding is little more than its text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.protocol.chunk_template import DeltaDecoder, DeltaEncoder, Item

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "and", "is", "gone"]

# Chunks that share much, as those of a stream do, and quotes where they hurt.
pieces = st.sampled_from([b'data: {"a":"', b'"', b'\\"', b'"},"b":"', b'"}\n\n', b"x", b"xy"])
alike = st.lists(pieces, max_size=6).map(b"".join)
chunks = st.lists(alike | st.binary(max_size=20), max_size=30)


pack_chunks = msgpack.Packer(use_bin_type=False, autoreset=True).pack


def event(body: dict[str, Any]) -> bytes:
    packed = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return b"data: " + packed.encode() + b"\n\n"


def chat(delta: dict[str, Any], *, index: int = 0, finish: str | None = None) -> bytes:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return event(body | {"choices": [choice | {"token_ids": None}]})


def completion(text: str, *, index: int = 0) -> bytes:
    choice = {"index": index, "text": text, "logprobs": None, "finish_reason": None}
    body = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}
    return event(body | {"choices": [choice]})


def arguments(text: str) -> bytes:
    return chat({"tool_calls": [{"index": 0, "function": {"arguments": text}}]})


def steps(stream: list[bytes], cuts: Iterable[int]) -> Iterator[list[bytes]]:
    """The stream as engine steps of these lengths; the last one has the rest."""
    rest = iter(stream)
    for cut in cuts:
        yield list(islice(rest, cut))
    yield list(rest)


def encode_each(stream: list[bytes]) -> list[list[Item]]:
    """One chunk per step, as a token stream comes."""
    folder = DeltaEncoder()
    return [folder.encode([chunk]) for chunk in stream]


def decode_each(folded: Iterable[list[Item]]) -> bytes:
    decoder = DeltaDecoder()
    return b"".join([decoder.decode(items) for items in folded])


def words(folded: list[list[Item]]) -> list[list[Item]]:
    """The steps at the end of a stream, of which each says one of WORDS."""
    return folded[-len(WORDS) :]


@settings(deadline=None, derandomize=True, max_examples=500)
@given(chunks, st.lists(st.integers(0, 5), max_size=20))
def test_any_chunks_come_out_as_they_went_in_however_they_are_cut(
    stream: list[bytes], cuts: list[int]
) -> None:
    folder, decoder = DeltaEncoder(), DeltaDecoder()
    for step in steps(stream, cuts):
        packed = pack_chunks(folder.encode(step))
        items = msgpack.unpackb(packed, raw=True, use_list=False)
        assert decoder.decode(items) == b"".join(step)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=30))
def test_any_texts_of_a_chat_come_out_as_they_went_in(texts: list[str]) -> None:
    stream = [chat({"content": text}) for text in texts]
    assert decode_each(encode_each(stream)) == b"".join(stream)


@settings(deadline=None, derandomize=True)
@given(chunks)
def test_the_cutting_does_not_change_the_items(stream: list[bytes]) -> None:
    together = DeltaEncoder().encode(stream)
    assert [item for items in encode_each(stream) for item in items] == together
    assert DeltaDecoder().decode(together) == b"".join(stream)


def test_a_step_of_a_chat_is_its_text() -> None:
    stream = [chat({"role": "assistant", "content": ""})]
    stream += [chat({"content": " is"}), chat({"content": " it"})]
    stream += [chat({"content": word}) for word in WORDS]
    folded = encode_each(stream)
    assert words(folded) == [[word.encode()] for word in WORDS]
    assert [len(pack_chunks(items)) for items in words(folded)] == [len(w) + 2 for w in WORDS]
    assert decode_each(folded) == b"".join(stream)


def test_a_step_of_a_completion_is_its_text() -> None:
    stream = [completion(text) for text in ("It", " is", *WORDS)]
    folded = encode_each(stream)
    assert words(folded) == [[word.encode()] for word in WORDS]
    assert decode_each(folded) == b"".join(stream)


def test_several_steps_at_once_are_their_texts() -> None:
    folder = DeltaEncoder()
    folder.encode([chat({"role": "assistant", "content": ""}), chat({"content": "a"})])
    folder.encode([chat({"content": "b"})])
    step = [chat({"content": word}) for word in WORDS]
    assert folder.encode(step) == [word.encode() for word in WORDS]


def test_the_arguments_of_a_tool_call_are_sent_as_they_grow() -> None:
    stream = [chat({"role": "assistant", "content": ""})]
    stream += [chat({"content": word}) for word in WORDS]  # it has settled on an template
    call = {"index": 0, "id": "call-1", "type": "function", "function": {"name": "find"}}
    stream += [chat({"tool_calls": [call]}), arguments('{"'), arguments("who")]
    stream += [arguments(word) for word in WORDS]
    folded = encode_each(stream)
    assert words(folded) == [[word.encode()] for word in WORDS]
    assert decode_each(folded) == b"".join(stream)


def test_text_after_reasoning_is_sent_as_it_is() -> None:
    stream = [chat({"role": "assistant", "content": ""})]
    stream += [chat({"reasoning_content": word}) for word in WORDS]
    stream += [chat({"content": word}) for word in ("so", "then", *WORDS)]
    folded = encode_each(stream)
    assert words(folded) == [[word.encode()] for word in WORDS]
    assert decode_each(folded) == b"".join(stream)


def test_a_step_of_two_choices_tells_little_more_than_which_and_what() -> None:
    folder, decoder = DeltaEncoder(), DeltaDecoder()
    for i, pair in enumerate((word, word.upper()) for word in WORDS):
        step = [chat({"content": word}, index=index) for index, word in enumerate(pair)]
        items = folder.encode(step)
        assert decoder.decode(items) == b"".join(step)
        if i > 3:
            assert len(items) == 2  # no template
            extra = len(b':0,"delta":{"content":"')
            assert len(pack_chunks(items)) <= 1 + sum(len(word) + extra + 1 for word in pair)


def test_the_first_chunk_is_sent_whole() -> None:
    chunk = chat({"role": "assistant", "content": ""})
    assert DeltaEncoder().encode([chunk]) == [chunk]


def test_a_chunk_that_is_no_json_is_sent_as_it_is() -> None:
    folder, decoder = DeltaEncoder(), DeltaDecoder()
    stream = [chat({"content": "a"}), chat({"content": "b"}), b"data: [DONE]\n\n", b""]
    folded = [folder.encode([chunk]) for chunk in stream]
    assert [decoder.decode(items) for items in folded] == stream
    assert len(pack_chunks(folded[2])) < 20


def test_no_chunks_are_no_items() -> None:
    assert DeltaEncoder().encode([]) == []
    assert DeltaDecoder().decode([]) == DeltaDecoder().decode(()) == b""


def test_a_chunk_that_is_repeated_costs_next_to_nothing() -> None:
    stream = [chat({"content": "x"})] * 20
    folded = encode_each(stream)
    assert decode_each(folded) == b"".join(stream)
    assert all(len(pack_chunks(items)) < 20 for items in folded[2:])
    stream += [chat({"content": word}) for word in ("y", "z", *WORDS)]
    folded = encode_each(stream)  # the repetitions have not spoiled the template
    assert words(folded) == [[word.encode()] for word in WORDS]
    assert decode_each(folded) == b"".join(stream)


@pytest.mark.parametrize("text", ["", '"', '\\"', "\\", 'a"b', '"},"finish_reason":null', "ü\n🙂"])
def test_a_middle_may_be_empty_or_look_like_an_envelope(text: str) -> None:
    stream = [chat({"content": word}) for word in ("a", "b", text, "c", text, text, *WORDS)]
    folded = encode_each(stream)
    assert decode_each(folded) == b"".join(stream)
    # After it has misled the sender once, it is the middle again.
    escaped = json.dumps(text, ensure_ascii=False)[1:-1].encode()
    assert encode_each([*stream, chat({"content": text})])[-1][-1:] == [escaped]


def test_a_chunk_shorter_than_the_envelope_does_not_fit_it() -> None:
    head, tail = b'{"a":"aaaa"', b'"aaaa"}'
    folder, decoder = DeltaEncoder(), DeltaDecoder()
    for chunk in (head + b'b"' + tail, head + b'c"' + tail, head + tail, head, tail, b'"', b""):
        assert decoder.decode(folder.encode([chunk])) == chunk


@pytest.mark.parametrize("text", WORDS)
def test_who_leaves_a_settled_envelope_goes_by_the_chunk_before(text: str) -> None:
    stream = [chat({"content": f'{word} "{word}" {word}'}) for word in WORDS]
    # It does not fit, and is much like one that came long before.
    stream.append(chat({"content": f'{text} "{text}" {text}'}, finish="stop"))
    assert decode_each(encode_each(stream)) == b"".join(stream)


def test_who_has_not_seen_every_step_can_not_unfold() -> None:
    stream = [chat({"content": word}) for word in WORDS]
    folded = encode_each(stream)
    late, mixed_up = DeltaDecoder(), DeltaDecoder()
    assert late.decode(folded[3]) != stream[3]
    assert mixed_up.decode(folded[1]) != stream[1]
    anew = DeltaDecoder()  # from the first: all is well
    assert [anew.decode(items) for items in folded] == stream


def test_jobs_have_envelopes_of_their_own() -> None:
    one, other = DeltaEncoder(), DeltaEncoder()
    for word in WORDS:
        assert one.encode([chat({"content": word})]) == other.encode([chat({"content": word})])

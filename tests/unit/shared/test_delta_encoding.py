"""Delta-encoded chunks: decoding gives the same bytes; an encoding is little more than the text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.job.log import DeltaDecoder, DeltaEncoder, Item

TEXTS = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "and", "is", "gone"]

# Chunks that share much, as those of a stream do, with quotes in difficult positions.
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


def arguments(text: str) -> bytes:
    return chat({"tool_calls": [{"index": 0, "function": {"arguments": text}}]})


def steps(stream: list[bytes], cuts: Iterable[int]) -> Iterator[list[bytes]]:
    """The stream as engine steps of these lengths; the last one has the rest."""
    rest = iter(stream)
    for cut in cuts:
        yield list(islice(rest, cut))
    yield list(rest)


def encode_each(stream: list[bytes]) -> list[list[Item]]:
    """Encode one chunk per step, as in a token stream: `text` is `encode` where it is not None."""
    encoder, plain = DeltaEncoder(), DeltaEncoder()
    steps: list[list[Item]] = []
    for chunk in stream:
        text = encoder.text(chunk)
        steps.append(encoder.encode([chunk]) if text is None else [text])
        assert steps[-1] == plain.encode([chunk])
    return steps


def decode_each(encoded: Iterable[list[Item]]) -> bytes:
    decoder = DeltaDecoder()
    return b"".join([decoder.decode(items) for items in encoded])


def last_steps(encoded: list[list[Item]]) -> list[list[Item]]:
    """The last steps of a stream, which have one of TEXTS each."""
    return encoded[-len(TEXTS) :]


@settings(deadline=None, derandomize=True, max_examples=500)
@given(chunks, st.lists(st.integers(0, 5), max_size=20))
def test_chunks_are_decoded_as_they_were_encoded_however_they_are_cut(
    stream: list[bytes], cuts: list[int]
) -> None:
    encoder, decoder = DeltaEncoder(), DeltaDecoder()
    for step in steps(stream, cuts):
        packed = pack_chunks(encoder.encode(step))
        items = msgpack.unpackb(packed, raw=True, use_list=False)
        assert decoder.decode(items) == b"".join(step)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=30))
def test_texts_of_a_chat_are_decoded_as_they_were_encoded(texts: list[str]) -> None:
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
    stream += [chat({"content": word}) for word in TEXTS]
    encoded = encode_each(stream)
    assert last_steps(encoded) == [[word.encode()] for word in TEXTS]
    assert [len(pack_chunks(items)) for items in last_steps(encoded)] == [len(w) + 2 for w in TEXTS]
    assert decode_each(encoded) == b"".join(stream)


def test_the_arguments_of_a_tool_call_are_sent_as_they_grow() -> None:
    stream = [chat({"role": "assistant", "content": ""})]
    stream += [chat({"content": word}) for word in TEXTS]  # a template is chosen by now
    call = {"index": 0, "id": "call-1", "type": "function", "function": {"name": "find"}}
    stream += [chat({"tool_calls": [call]}), arguments('{"'), arguments("who")]
    stream += [arguments(word) for word in TEXTS]
    encoded = encode_each(stream)
    assert last_steps(encoded) == [[word.encode()] for word in TEXTS]
    assert decode_each(encoded) == b"".join(stream)


def test_a_step_of_two_choices_is_little_more_than_indexes_and_texts() -> None:
    encoder, decoder = DeltaEncoder(), DeltaDecoder()
    for i, pair in enumerate((word, word.upper()) for word in TEXTS):
        step = [chat({"content": word}, index=index) for index, word in enumerate(pair)]
        items = encoder.encode(step)
        assert decoder.decode(items) == b"".join(step)
        if i > 3:
            assert len(items) == 2  # no template
            extra = len(b':0,"delta":{"content":"')
            assert len(pack_chunks(items)) <= 1 + sum(len(word) + extra + 1 for word in pair)


def test_a_chunk_that_is_no_json_is_sent_as_it_is() -> None:
    encoder, decoder = DeltaEncoder(), DeltaDecoder()
    stream = [chat({"content": "a"}), chat({"content": "b"}), b"data: [DONE]\n\n", b""]
    encoded = [encoder.encode([chunk]) for chunk in stream]
    assert [decoder.decode(items) for items in encoded] == stream
    assert len(pack_chunks(encoded[2])) < 20


def test_a_chunk_that_is_repeated_costs_next_to_nothing() -> None:
    stream = [chat({"content": "x"})] * 20
    encoded = encode_each(stream)
    assert decode_each(encoded) == b"".join(stream)
    assert all(len(pack_chunks(items)) < 20 for items in encoded[2:])
    stream += [chat({"content": word}) for word in ("y", "z", *TEXTS)]
    encoded = encode_each(stream)  # the repetitions have not changed the template
    assert last_steps(encoded) == [[word.encode()] for word in TEXTS]
    assert decode_each(encoded) == b"".join(stream)


@pytest.mark.parametrize("text", ["", '"', '\\"', "\\", 'a"b', '"},"finish_reason":null', "ü\n🙂"])
def test_a_text_may_be_empty_or_look_like_a_template(text: str) -> None:
    stream = [chat({"content": word}) for word in ("a", "b", text, "c", text, text, *TEXTS)]
    encoded = encode_each(stream)
    assert decode_each(encoded) == b"".join(stream)
    # The encoder takes a wrong part as the text once, then the right one again.
    escaped = json.dumps(text, ensure_ascii=False)[1:-1].encode()
    assert encode_each([*stream, chat({"content": text})])[-1][-1:] == [escaped]


def test_a_decoder_that_misses_a_step_can_not_decode() -> None:
    stream = [chat({"content": word}) for word in TEXTS]
    encoded = encode_each(stream)
    late, mixed_up = DeltaDecoder(), DeltaDecoder()
    assert late.decode(encoded[3]) != stream[3]
    assert mixed_up.decode(encoded[1]) != stream[1]
    complete = DeltaDecoder()  # from the first chunk on
    assert [complete.decode(items) for items in encoded] == stream

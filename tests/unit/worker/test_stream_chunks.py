"""Chunks by template, without vLLM: JSON strings, and which streams stay as they are."""

from __future__ import annotations

from pydantic import BaseModel

from worker.engines.vllm import chunks


class Delta(BaseModel):
    content: str


def by_pydantic(text: str) -> str:
    return Delta(content=text).model_dump_json().removeprefix('{"content":').removesuffix("}")


def test_every_character_is_written_as_pydantic_writes_it() -> None:
    for start in range(0, 0x110000, 64):
        if not 0xD800 <= start < 0xE000:  # surrogates: neither of them can write one
            text = "".join(map(chr, range(start, start + 64)))
            assert chunks.quoted(text) == by_pydantic(text)
    escaped = r'"\b\f\n\r\t\u000b\u001f\"\\/' '\x7f"'
    assert chunks.quoted('\b\f\n\r\t\x0b\x1f"\\/\x7f') == escaped

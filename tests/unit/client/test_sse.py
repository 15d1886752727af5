"""Server-sent events, however the network has cut them."""

from __future__ import annotations

from typing import Any

import pytest

from shared.client import sse

BLOCKS = [
    b"data: 1\n\n",
    b": waits\n",
    b": waits\r\n",
    b"data: 2\r\n\r\n",
    b": of an older gateway\n",
    b"\n",
    b"event: a\ndata: 3\r\n\n",
]


@pytest.mark.parametrize("size", range(1, 9))
def test_blocks_are_complete_with_their_last_byte(size: int) -> None:
    stream = b"".join(BLOCKS) + b"data: 4\r\n\r"
    splitter = sse.EventSplitter()
    found = []
    for at in range(0, len(stream), size):
        found += splitter.feed(stream[at : at + size])
        assert b"".join(found) + splitter.rest == stream[: at + size]
    assert found == BLOCKS
    assert [block for block in found if sse.is_comment(block)] == [*BLOCKS[1:3], *BLOCKS[4:6]]


def test_a_long_event_in_small_parts_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = []

    class Counting:
        def search(self, data: bytes, begin: int = 0) -> Any:
            searched.append(len(data) - begin)
            return end.search(data, begin)

    end = sse._BLOCK_END
    monkeypatch.setattr(sse, "_BLOCK_END", Counting())
    splitter = sse.EventSplitter()
    for _ in range(1000):
        assert splitter.feed(b"x" * 100) == []
    assert splitter.feed(b"\n\n") == [b"x" * 100_000 + b"\n\n"]
    assert sum(searched) < 110_000

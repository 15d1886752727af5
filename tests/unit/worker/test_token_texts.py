"""The texts of tokens are looked up once."""

from __future__ import annotations

from typing import Any

from worker.engines.vllm.token_texts import keeping


def test_each_token_is_decoded_once() -> None:
    decoded: list[int] = []

    def convert(tokenizer: Any, token_ids: list[int]) -> list[str]:
        decoded.extend(token_ids)
        return [f"{tokenizer}{token}" for token in token_ids]

    known = keeping(convert, "own")
    first = known("own", [3, 1, 3, 2])
    assert first == ["own3", "own1", "own3", "own2"]
    first[0] = "changed by the caller"
    assert known("own", [2, 3, 4]) == ["own2", "own3", "own4"]
    assert sorted(decoded) == [1, 2, 3, 4]
    assert known("another", [1]) == ["another1"]
    assert known("own", []) == []

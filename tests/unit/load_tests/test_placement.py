"""The pure parts of `load_tests placement`."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from load_tests.harness.errors import RunError
from load_tests.placement.trace import Call, hit_ratio, prompt, read_trace
from worker.engines.simulated.generation import Prompt
from worker.engines.simulated.prefix_cache import PrefixCache

ROWS = (
    '{"timestamp": 500, "input_length": 600, "output_length": 9, "hash_ids": [0, 1]}\n'
    '{"timestamp": 750, "input_length": 512, "output_length": 3, "hash_ids": [0]}\n'
)


def call(tokens: int, *hash_ids: int) -> Call:
    return Call(0.0, tokens, 1, hash_ids)


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_a_trace_is_read(tmp_path: Path, name: str) -> None:
    file, data = tmp_path / name, ROWS.encode()
    file.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    first, second = read_trace(file)
    assert first == Call(0.0, 600, 9, (0, 1))
    assert second.at_s == 0.25
    assert read_trace(file, 1) == [first]


@pytest.mark.parametrize(
    "text", ["", "[]\n", "{}\n", "x", ROWS.replace("[0, 1]", "[0]"), ROWS.replace("600", '"x"')]
)
def test_a_file_that_is_no_trace(tmp_path: Path, text: str) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(text)
    with pytest.raises(RunError, match=r"trace\.jsonl"):
        read_trace(file)


def test_prompts_have_exactly_the_blocks_in_common_that_their_hashes_name() -> None:
    one, other = prompt(call(1100, 1, 2, 3)), prompt(call(1090, 1, 2, 4))
    assert one[:4096] == other[:4096]
    assert Prompt(one).n_tokens == 1100
    assert Prompt(one).blocks[:2] == Prompt(other).blocks[:2]
    assert Prompt(one).blocks[2] != Prompt(other).blocks[2]


def test_a_last_block_of_one_token_differs_by_its_hash() -> None:
    prompts = {prompt(call(513, 0, each)) for each in range(1, 200_000, 1000)}
    assert len(prompts) == 200


def test_hit_ratios_of_one_cache_and_of_several() -> None:
    calls = [call(600, 0, 1), call(700, 0, 2), call(600, 0, 1), call(700, 0, 2)]
    assert hit_ratio(calls, [PrefixCache(9)]) == pytest.approx((512 + 600 + 700) / 2600)
    assert hit_ratio(calls, [PrefixCache(9), PrefixCache(9)]) == pytest.approx(1300 / 2600)
    assert hit_ratio(calls, [PrefixCache(9) for _ in range(4)]) == 0

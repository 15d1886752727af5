"""vLLM's arguments from flotilla.yaml."""

from __future__ import annotations

from typing import Any

import pytest

from shared.fleet.engine_args import adapters_argv, argv_of, sampling_argv


@pytest.mark.parametrize(
    ("arguments", "argv"),
    [
        ({}, []),
        ("", []),
        ("--seed 1 --chat-template 'a b'", ["--seed", "1", "--chat-template", "a b"]),
        (
            {"max_num_seqs": 4, "max-model-len": 64},
            ["--max-num-seqs", "4", "--max-model-len", "64"],
        ),
        ({"--seed": 1}, ["--seed", "1"]),
        ({"enforce_eager": True}, ["--enforce-eager"]),
        ({"enable_prefix_caching": False}, ["--no-enable-prefix-caching"]),
        ({"revision": None}, []),
        ({"gpu_memory_utilization": 0.9}, ["--gpu-memory-utilization", "0.9"]),
        ({"tensor_parallel_size": "auto"}, ["--tensor-parallel-size", "auto"]),
        ({"middleware": ["a", "b"]}, ["--middleware", "a", "b"]),
        ({"hf_overrides": {"a": [1]}}, ["--hf-overrides", '{"a": [1]}']),
    ],
)
def test_arguments_become_words(arguments: str | dict[str, Any], argv: list[str]) -> None:
    assert argv_of(arguments) == argv


def test_sampling_parameters_have_vllms_names() -> None:
    assert sampling_argv({}) == []
    assert sampling_argv({"top_k": 3, "max_tokens": 5}) == [
        "--override-generation-config",
        '{"top_k": 3, "max_new_tokens": 5}',
    ]
    with pytest.raises(ValueError, match="`seed` has no default in vLLM; those that have: "):
        sampling_argv({"seed": 1})


def test_adapters_need_no_other_argument() -> None:
    assert adapters_argv({}) == []
    assert adapters_argv({"a=b": "/x,y"}) == [
        "--enable-lora",
        "--lora-modules",
        '{"name": "a=b", "path": "/x,y"}',
    ]

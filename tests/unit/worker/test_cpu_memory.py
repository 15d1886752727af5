"""How large the KV cache of an engine without a GPU is."""

from __future__ import annotations

import pytest

from worker.engines.vllm.cpu_memory import (
    LARGEST_BYTES,
    PROCESS_BYTES,
    kv_cache_bytes,
    weights_bytes,
)

GIB = 1 << 30


@pytest.mark.parametrize(
    ("memory", "weights", "one_request", "shared", "size"),
    [
        (8 * GIB, 2 * GIB, 0, False, (6 * GIB - PROCESS_BYTES) // 2),
        (8 * GIB, 2 * GIB, 0, True, (6 * GIB - PROCESS_BYTES) // 4),
        (64 * GIB, 2 * GIB, 0, False, LARGEST_BYTES),
        (64 * GIB, 2 * GIB, 5 * GIB, True, 5 * GIB),  # one request always fits, if it can
        (8 * GIB, 2 * GIB, 9 * GIB, False, 6 * GIB - PROCESS_BYTES),  # vLLM says what is missing
    ],
)
def test_the_cache_gets_a_part_of_what_is_left(
    memory: int, weights: int, one_request: int, shared: bool, size: int
) -> None:
    found = kv_cache_bytes(memory=memory, weights=weights, one_request=one_request, shared=shared)
    assert found == size


@pytest.mark.parametrize("shared", [True, False])
def test_weights_that_do_not_fit_leave_nothing(shared: bool) -> None:
    sizes = {"memory": 4 * GIB, "weights": 3 * GIB, "one_request": 1}
    assert kv_cache_bytes(**sizes, shared=shared) <= 0


def test_floats_take_the_models_size_and_packed_numbers_their_own() -> None:
    tensors = [
        {"format": "pt"},  # a file's `__metadata__`
        {"dtype": "F32", "shape": [10, 4], "data_offsets": [0, 160]},
        {"dtype": "BF16", "shape": [], "data_offsets": [160, 162]},
        {"dtype": "I32", "shape": [3], "data_offsets": [162, 174]},
        {"dtype": "F8_E4M3", "shape": [5], "data_offsets": [174, 179]},
    ]
    assert weights_bytes(tensors, 2) == 80 + 2 + 12 + 5

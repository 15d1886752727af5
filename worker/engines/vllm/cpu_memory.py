"""The KV cache of an engine without a GPU, where the operator has not set its size.

vLLM's own default is made for GPUs: each worker takes 92 % of all memory, or does not start.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

from shared.platform.free_memory import free_memory
from shared.platform.settings import SettingsError

log = logging.getLogger("flotilla.engine")

PROCESS_BYTES = 3 << 29
"""What an engine takes beside weights and KV cache: 1.5 GiB."""
LARGEST_BYTES = 4 << 30
"""Of a KV cache, unless one request of the model's full length needs more."""
_PART, _SHARED_PART = 2, 4
"""The KV cache gets this part, a half or a quarter, of what weights and process leave."""
_FLOATS = ("F64", "F32", "F16", "BF16")


def kv_cache_bytes(*, memory: int, weights: int, one_request: int, shared: bool) -> int:
    """The size of a worker's KV cache; 0 or less: the model does not fit. Pure.

    `memory` is all that the worker may take; `shared`: workers that it does not know may take of
    the same. `one_request`: what a request of the model's full length needs.
    """
    rest = memory - PROCESS_BYTES - weights
    usual = rest // (_SHARED_PART if shared else _PART)
    return min(rest, max(one_request, min(LARGEST_BYTES, usual)))


def size_kv_cache(
    config: Any, tensors: Mapping[str, Mapping[str, Any]], worker_memory_bytes: int
) -> None:
    """Set the size in vLLM's config, and log it. Raises SettingsError if the model does not fit.

    `tensors`: the headers of the model's safetensors. `worker_memory_bytes`: the setting.
    """
    free = free_memory()
    if config.cache_config.kv_cache_memory_bytes is not None or not free.bytes:
        return
    memory = min(worker_memory_bytes or free.bytes, free.bytes)
    engines = config.parallel_config.world_size
    weights = weights_bytes(tensors.values(), config.model_config.dtype.itemsize) // engines
    size = kv_cache_bytes(
        memory=memory // engines,
        # vLLM counts the pages of the files it has read, too, where a container has a limit.
        weights=weights * 2 if free.limited else weights,
        one_request=_one_request_bytes(config),
        shared=not worker_memory_bytes,
    )
    if size <= 0:
        raise SettingsError(
            f"the model does not fit into memory: its weights take {_gib(weights * engines)} and "
            f"each process {_gib(PROCESS_BYTES)}, this worker may take {_gib(memory)} of "
            f"{_gib(free.bytes)} that are free; start fewer workers (--workers), or raise "
            "FLOTILLA_WORKER_MEMORY_BYTES or the container's limit"
        )
    log.info(
        "no GPU: %s for the KV cache, of %s that this worker may take; "
        "--engine-args '--kv-cache-memory-bytes N' sets it",
        _gib(size),
        _gib(memory),
    )
    config.cache_config.kv_cache_memory_bytes = size


def weights_bytes(tensors: Iterable[Mapping[str, Any]], float_bytes: int) -> int:
    """What tensors take once they are loaded, `float_bytes` for each number that is not packed."""
    found = 0
    for tensor in tensors:
        if tensor.get("dtype") in _FLOATS:
            found += prod(tensor["shape"]) * float_bytes
        elif "data_offsets" in tensor:  # else it is a file's own `__metadata__`
            begin, end = tensor["data_offsets"]
            found += end - begin
    return found


def _one_request_bytes(config: Any) -> int:
    """What the longest request takes of the KV cache; an upper bound for unusual models."""
    model, parallel = config.model_config, config.parallel_config
    per_token = model.get_num_kv_heads(parallel) * model.get_head_size() * model.dtype.itemsize
    tokens = model.max_model_len + (config.cache_config.block_size or 0)
    return int(2 * per_token * model.get_num_layers(parallel) * tokens)


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"

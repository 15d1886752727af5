"""Which GPUs a worker of `flotilla up` gets. Pure, except `gpus`, which runs nvidia-smi.

Two engines on one GPU would each try to allocate all of its memory.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from itertools import islice

from shared.fleet.pool import Pool

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_DRIVER_TIMEOUT_S = 20.0


def gpus(environment: Mapping[str, str]) -> list[str]:
    """The usable GPUs of this machine; empty if there are none or the driver can't list them."""
    if _VISIBLE in environment:
        return [device for device in environment[_VISIBLE].split(",") if device]
    driver = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if driver is None:
        return []
    try:
        done = subprocess.run(  # noqa: S603
            [driver, "-L"], capture_output=True, text=True, timeout=_DRIVER_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    # `GPU 0: NVIDIA H200 (UUID: GPU-...)`; parts of a GPU (MIG) are indented below it.
    lines = [line for line in done.stdout.splitlines() if line.startswith("GPU ")]
    return [line.removeprefix("GPU ").partition(":")[0] for line in lines]


def allot(pools: Sequence[Pool], environment: Mapping[str, str]) -> dict[str, list[str]]:
    """By pool the GPUs of each of its workers, as CUDA_VISIBLE_DEVICES.

    Empty for a pool whose workers see all GPUs.
    """
    engines = [pool for pool in pools if pool.engine == "vllm"]
    devices = gpus(environment) if engines else []
    found: dict[str, list[str]] = {pool.name: [] for pool in pools}
    return found | shared_out(devices, engines)


def shared_out(devices: Sequence[str], pools: Sequence[Pool]) -> dict[str, list[str]]:
    """The same for given GPUs.

    A single pool uses all of them, one group after the other. Of several, each gets what its
    workers need, in the order of the pools; those whose engines take all GPUs that they see
    (`--tensor-parallel-size auto`) share what is left.
    """
    if len(devices) < 2:
        return {}
    sizes = {pool.name: gpus_per_engine(pool.engine_args) for pool in pools}
    if len(pools) == 1 and (size := sizes[pools[0].name]):
        return {pools[0].name: _groups(devices, size)}
    left = list(devices)
    found = {}
    for pool in pools:
        if size := sizes[pool.name]:
            taken = left[: size * pool.range[1]]
            # With too few GPUs for all, the last pools share those of the first.
            enough = len(taken) >= size
            found[pool.name] = _groups(taken if enough else devices, size)
            left = left[len(taken) :] if enough else left
    auto = [pool for pool in pools if not sizes[pool.name]]
    rest = left or list(devices)
    each = max(1, len(rest) // max(1, sum(pool.range[1] for pool in auto)))
    groups = iter(_groups(rest, each))
    for pool in auto:
        found[pool.name] = list(islice(groups, pool.range[1])) or _groups(rest, each)
    return found


def _groups(devices: Sequence[str], size: int) -> list[str]:
    firsts = range(0, len(devices) - size + 1, size)
    return [",".join(devices[first : first + size]) for first in firsts]


def gpus_per_engine(engine_args: str) -> int:
    """How many GPUs one engine takes; 0: all that it sees."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--tensor-parallel-size", "-tp", default="1")
    parser.add_argument("--pipeline-parallel-size", "-pp", type=int, default=1)
    try:
        known, _ = parser.parse_known_args(shlex.split(engine_args))
        if known.tensor_parallel_size == "auto":
            return 0
        size = int(known.tensor_parallel_size) * int(known.pipeline_parallel_size)
    except (argparse.ArgumentError, ValueError):
        return 1  # vLLM reports what is wrong with them
    return max(1, size)


def device_of(number: int, shares: Sequence[str]) -> dict[str, str]:
    """The GPU variable of worker `number`, counted from 1."""
    return {_VISIBLE: shares[(number - 1) % len(shares)]} if shares else {}

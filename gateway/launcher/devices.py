"""Which GPUs a worker of `flotilla up` gets. Pure, except `gpus`, which runs nvidia-smi.

Two engines on one GPU would each want all of its memory.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from shared.fleet.pools import Pool

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


def shares(pool: Pool, environment: Mapping[str, str]) -> list[str]:
    """The GPUs of each worker, as CUDA_VISIBLE_DEVICES; empty if all workers see all GPUs."""
    return groups(gpus(environment), pool.engine_args) if pool.engine == "vllm" else []


def groups(devices: Sequence[str], engine_args: str) -> list[str]:
    """The same for given GPUs: one value of CUDA_VISIBLE_DEVICES for each worker."""
    if len(devices) < 2:
        return []
    size = _gpus_per_engine(engine_args)
    return [
        ",".join(devices[first : first + size]) for first in range(0, len(devices) - size + 1, size)
    ]


def _gpus_per_engine(engine_args: str) -> int:
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--tensor-parallel-size", "-tp", type=int, default=1)
    parser.add_argument("--pipeline-parallel-size", "-pp", type=int, default=1)
    try:
        known, _ = parser.parse_known_args(shlex.split(engine_args))
    except (argparse.ArgumentError, ValueError):
        return 1  # vLLM reports what is wrong with them
    size: int = known.tensor_parallel_size * known.pipeline_parallel_size
    return max(1, size)


def device_of(number: int, shares: Sequence[str]) -> dict[str, str]:
    """The GPU variable of worker `number`, counted from 1."""
    return {_VISIBLE: shares[(number - 1) % len(shares)]} if shares else {}

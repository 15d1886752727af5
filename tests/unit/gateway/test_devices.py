"""Which GPUs the workers of `flotilla up` get."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.launcher.devices import device_of, gpus, groups, shares
from shared.platform.settings import Settings

TWO_GPUS = """\
GPU 0: NVIDIA H200 (UUID: GPU-aaaa)
  MIG 1g.18gb Device 0: (UUID: MIG-bbbb)
GPU 1: NVIDIA H200 (UUID: GPU-cccc)
"""


@pytest.mark.parametrize(
    ("devices", "engine_args", "workers"),
    [
        ([], "", ["", "", ""]),
        (["0"], "", ["", "", ""]),  # nothing to share out
        (["0", "1"], "", ["0", "1", "0"]),
        (["2", "GPU-x", "5"], "", ["2", "GPU-x", "5"]),
        (["0", "1", "2", "3"], "--tensor-parallel-size 2", ["0,1", "2,3", "0,1"]),
        (["0", "1", "2", "3", "4"], "-tp 2 --seed 1", ["0,1", "2,3", "0,1"]),
        (["0", "1", "2", "3"], "--tensor-parallel-size=2 -pp 2", ["0,1,2,3"] * 3),
        (["0", "1"], "-tp 4", ["", "", ""]),  # vLLM will say what is wrong
        (["0", "1"], "-tp many", ["0", "1", "0"]),
        (["0", "1"], "'", ["0", "1", "0"]),
    ],
)
def test_gpus_are_shared_out(devices: list[str], engine_args: str, workers: list[str]) -> None:
    shared = groups(devices, engine_args)
    given = [device_of(number, shared).get("CUDA_VISIBLE_DEVICES", "") for number in (1, 2, 3)]
    assert given == workers


@pytest.mark.parametrize(
    ("variables", "prints", "found"),
    [
        ({"CUDA_VISIBLE_DEVICES": "3,1"}, TWO_GPUS, ["3", "1"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, TWO_GPUS, []),
        ({}, TWO_GPUS, ["0", "1"]),
        ({}, "NVIDIA-SMI has failed\n", []),
        ({}, None, []),
    ],
)
def test_gpus_are_found(
    tmp_path: Path, variables: dict[str, str], prints: str | None, found: list[str]
) -> None:
    if prints is not None:
        driver = tmp_path / "nvidia-smi"
        driver.write_text(f"#!/bin/sh\n[ \"$1\" = -L ] && /bin/cat <<'E'\n{prints}E\n")
        driver.chmod(0o755)
    environment = {"PATH": str(tmp_path), **variables}
    assert gpus(environment) == found
    assert shares(Settings(engine="vllm"), environment) == (found if len(found) > 1 else [])
    assert shares(Settings(engine="simulated"), environment) == []

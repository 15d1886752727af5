"""Which GPUs the workers of `flotilla up` get."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.launcher.devices import allot, device_of, gpus, shared_out
from shared.fleet.pool import Pool


def a_pool(engine_args: str = "", *, name: str = "p", workers: int = 1) -> Pool:
    return Pool(
        given_name=name,
        served_names=(name,),
        engine_args=engine_args,
        workers=workers,
    )


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
    shared = shared_out(devices, [a_pool(engine_args)]).get("p", [])
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
    assert allot([a_pool()], environment) == {"p": found if len(found) > 1 else []}
    simulated = a_pool().model_copy(update={"engine": "simulated"})
    assert allot([simulated], environment) == {"p": []}


AUTO = "--tensor-parallel-size auto"


@pytest.mark.parametrize(
    ("n_devices", "pools", "shared"),
    [
        (4, [a_pool(AUTO)], {"p": ["0,1,2,3"]}),
        (4, [a_pool(AUTO, workers=2)], {"p": ["0,1", "2,3"]}),
        (5, [a_pool(AUTO, workers=2)], {"p": ["0,1", "2,3"]}),
        (1, [a_pool(AUTO)], {}),
        (4, [a_pool("-tp 2"), a_pool(name="q", workers=2)], {"p": ["0,1"], "q": ["2", "3"]}),
        (4, [a_pool(AUTO), a_pool(name="q")], {"p": ["1,2,3"], "q": ["0"]}),
        (4, [a_pool(AUTO), a_pool(AUTO, name="q")], {"p": ["0,1"], "q": ["2,3"]}),
        (2, [a_pool("-tp 2"), a_pool("-tp 2", name="q")], {"p": ["0,1"], "q": ["0,1"]}),
        (2, [a_pool("-tp 2"), a_pool(AUTO, name="q")], {"p": ["0,1"], "q": ["0,1"]}),
        (3, [a_pool("-tp 4"), a_pool(name="q")], {"p": [], "q": ["0"]}),
    ],
)
def test_pools_share_the_gpus(
    n_devices: int, pools: list[Pool], shared: dict[str, list[str]]
) -> None:
    assert shared_out([str(number) for number in range(n_devices)], pools) == shared

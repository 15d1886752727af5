"""Real vLLM on a CPU with AMX: its engine may use it, from the very first batch on."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path

import pytest

from worker.engines.interface import Engine

ARCH_PRCTL, ARCH_GET_XCOMP_PERM, TILE_DATA = 158, 0x1022, 1 << 18


def has_amx() -> bool:
    cpu = Path("/proc/cpuinfo")
    return platform.machine() == "x86_64" and "amx_tile" in cpu.read_text()


@pytest.mark.vllm
@pytest.mark.skipif(not has_amx(), reason="this CPU has no AMX")
async def test_the_kernel_lets_the_engine_use_amx(vllm_engine: Engine) -> None:
    allowed = ctypes.c_uint64()
    ctypes.CDLL(None).syscall(ARCH_PRCTL, ARCH_GET_XCOMP_PERM, ctypes.byref(allowed))
    assert allowed.value & TILE_DATA, "and so may the engine's process, which is a fork of this one"

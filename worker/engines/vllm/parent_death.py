"""Ends the engine's processes when their parent ends, however it ends.

A worker killed with SIGKILL can't clean up, and vLLM's EngineCore would keep running with the
KV cache. On Linux the kernel kills it: PR_SET_PDEATHSIG. Forked children request that in `at_fork`,
spawned ones in vLLM's plugin hook (`vllm.general_plugins` in pyproject.toml), which each runs.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends; does nothing in a main process."""
    if sys.platform != "linux" or multiprocessing.parent_process() is None:
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the call
        os.kill(os.getpid(), signal.SIGKILL)


def at_fork() -> None:
    """Have every process that this one forks through multiprocessing killed when it ends."""
    os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    # multiprocessing sets parent_process() only later in the child's bootstrap.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

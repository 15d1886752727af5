"""vLLM's engine processes end when the worker process does, however it ends.

A worker killed with SIGKILL can't clean up, and vLLM's EngineCore would live on with the KV cache.
Forked children request the signal in `at_fork`, spawned ones through vLLM's plugin hook
(`vllm.general_plugins` in pyproject.toml), which runs in each.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys

from shared.platform.death_signal import request_signal


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends; does nothing in a main process."""
    if sys.platform != "linux" or multiprocessing.parent_process() is None:
        return
    parent = os.getppid()
    request_signal(signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the request
        os.kill(os.getpid(), signal.SIGKILL)


def at_fork() -> None:
    """Have every process that this one forks through multiprocessing killed when it ends."""
    # multiprocessing sets parent_process() only later in the child's start-up.
    os.register_at_fork(after_in_child=lambda: request_signal(signal.SIGKILL))

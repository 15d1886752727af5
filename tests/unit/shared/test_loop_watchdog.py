"""The watchdog of the event loop: it ends a process whose loop stands still, and no other."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

from shared.platform.loop_watchdog import LoopWatchdog

LIMIT_S = 0.4
PROGRAM = """
import asyncio, time
from shared.platform.loop_watchdog import LoopWatchdog

async def main():
    LoopWatchdog(0.4).start()
    print("started", flush=True)
    await asyncio.sleep(0.1)
    {then}

asyncio.run(main())
"""


def start(then: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(then=then)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    return process


def test_a_process_whose_loop_is_blocked_ends_with_a_reason() -> None:
    process = start("time.sleep(60)")
    _, errors = process.communicate(timeout=150)
    assert process.returncode == 1
    assert "the event loop has stood still for 0 s: this process ends" in errors
    assert "time.sleep" in errors or 'File "<string>"' in errors  # where it stands


def test_a_process_that_was_stopped_for_longer_goes_on() -> None:
    process = start("await asyncio.sleep(1.0)")
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(3 * LIMIT_S)
    os.kill(process.pid, signal.SIGCONT)
    _, errors = process.communicate(timeout=150)
    assert (process.returncode, errors) == (0, "")


async def test_it_waits_while_it_is_not_active() -> None:
    stalled, active = threading.Event(), False
    watchdog = LoopWatchdog(LIMIT_S, lambda: active, stalled.set)
    watchdog.start()
    await asyncio.sleep(LIMIT_S / 2)
    time.sleep(3 * LIMIT_S)  # noqa: ASYNC251
    assert not stalled.is_set()
    active = True
    time.sleep(10 * LIMIT_S)  # noqa: ASYNC251
    watchdog.stop()
    assert stalled.is_set()

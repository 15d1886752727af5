"""A child process of `flotilla up`: its start, its output and its end.

service.py decides whether it is started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from shared.platform.death_signal import signal_at_parent_death

_CHUNK_BYTES = 64 * 1024
_PUMP_REST_S = 1.0


@dataclass(frozen=True, slots=True)
class Command:
    """A program to run, and whether the terminal shows its stdout."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    shows_stdout: bool = True
    inherits: tuple[int, ...] = ()  # file descriptors that stay open in it
    when_orphaned: signal.Signals = signal.SIGTERM  # signal when the supervisor has died


class Child:
    """A running process in a session and process group of its own.

    Its stdout goes to the log and, line by line, to `show`; its stderr to the log alone.
    """

    def __init__(self, process: asyncio.subprocess.Process, pump: asyncio.Task[None]) -> None:
        self.pid = process.pid
        self._process = process
        self._pump = pump

    @classmethod
    async def start(cls, command: Command, log: Path, show: Callable[[str], None]) -> Child:
        """Raises OSError if the program can't be run."""
        log_fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        # A pipe of our own: with one of asyncio's, some Python versions report the end of a process
        # only when its last grandchild has closed the pipe.
        read_fd, write_fd = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *command.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write_fd,
                stderr=log_fd,
                env=command.environment,
                pass_fds=command.inherits,
                start_new_session=True,
                preexec_fn=signal_at_parent_death(os.getpid(), command.when_orphaned),
            )
        except BaseException:
            os.close(read_fd)
            os.close(log_fd)
            raise
        finally:
            os.close(write_fd)
        pump = _pump(read_fd, log_fd, show if command.shows_stdout else lambda line: None)
        return cls(process, asyncio.create_task(pump, name=f"output of {process.pid}"))

    async def end(self) -> int:
        """Its exit status, or minus the signal that killed it, once its whole group is gone."""
        status = await self._process.wait()
        # An engine process outlives a killed worker; the group has only processes of the worker.
        self.kill()
        # A process that left the group may still hold the pipe.
        await asyncio.wait({self._pump}, timeout=_PUMP_REST_S)
        self._pump.cancel()
        return status

    def terminate(self) -> None:
        """Send SIGTERM."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL to its process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


async def _pump(read_fd: int, log_fd: int, show: Callable[[str], None]) -> None:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_fd, "rb", buffering=0)
    )
    unfinished = b""
    try:
        while chunk := await reader.read(_CHUNK_BYTES):
            # Without room on the disk the pipe is still read: else the process would stop.
            with contextlib.suppress(OSError):
                os.write(log_fd, chunk)
            *lines, unfinished = (unfinished + chunk).split(b"\n")
            if len(unfinished) > _CHUNK_BYTES:
                lines, unfinished = [*lines, unfinished], b""
            for line in lines:
                show(line.decode(errors="replace").rstrip("\r"))
        if unfinished:
            show(unfinished.decode(errors="replace"))
    finally:
        transport.close()
        os.close(log_fd)

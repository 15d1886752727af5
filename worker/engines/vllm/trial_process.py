"""The process that tries what a client has sent before vLLM gets it.

Some grammars and request bodies take vLLM minutes or gigabytes, or end its process. So each is
tried here first, in a child process of its own, with limits of time and memory: whatever happens
there is an answer about the request, and nothing of it is kept.

The worker forks this process before the engine, one for each kind of question. It has one thread.
`trials.py` is the worker's side.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import selectors
import signal
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from shared.platform.death_signal import request_signal

log = logging.getLogger("flotilla.trials")

Try = Callable[[bytes], str]
"""Question -> answer."""

HEADER = struct.Struct("!IQ")
"""Before each question: its number and its length in bytes."""
CANCELLED = (1 << 64) - 1
"""In place of the length: the answer is not needed any more; no question follows."""

_NICENESS = 5
_WALL_TIME = 2.0
_PROC = Path("/proc/self")
_READ_BYTES = 1 << 20


class Limits(NamedTuple):
    """The limits of one child."""

    seconds: float
    """CPU time of all its threads; their wall-clock time may be twice as long at most."""
    memory_bytes: int


class Failure(StrEnum):
    """Why there is no answer."""

    SLOW = "slow"
    DIED = "died"
    """The child ended by itself, or had too little memory."""
    UNTRIED = "untried"
    """There was no process or descriptor for a child; says nothing about the question."""


@dataclass
class _Child:
    number: int
    pid: int
    deadline: float
    answer: bytes = b""


def serve(connection: socket.socket, limits: Limits, prepare: Callable[[], Try]) -> None:
    """Answer the worker's questions until it ends. `prepare` loads what all children need."""
    request_signal(signal.SIGKILL)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # it ends with the worker, which may drain first
    signal.set_wakeup_fd(-1)
    _close_all_but(connection.fileno())
    os.nice(_NICENESS)
    _Server(connection, limits, prepare()).run()


class _Server:
    def __init__(self, connection: socket.socket, limits: Limits, attempt: Try) -> None:
        self._connection = connection
        self._limits = limits
        self._try = attempt
        self._children: dict[int, _Child] = {}  # by the descriptor of the answer
        self._received = bytearray()
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection, selectors.EVENT_READ)

    def run(self) -> None:
        while True:
            deadlines = [child.deadline for child in self._children.values()]
            left = min(deadlines) - time.monotonic() if deadlines else None
            for key, _ in self._selector.select(None if left is None else max(0.0, left)):
                if key.fileobj is self._connection:
                    data = self._connection.recv(_READ_BYTES)
                    if not data:  # the worker has ended
                        return
                    self._received += data
                    self._read_questions()
                elif key.fd in self._children:
                    self._read(key.fd)
            now = time.monotonic()
            for fd in [fd for fd, child in self._children.items() if child.deadline <= now]:
                os.kill(self._children[fd].pid, signal.SIGKILL)
                self._end(fd, Failure.SLOW)

    def _read_questions(self) -> None:
        while len(self._received) >= HEADER.size:
            number, length = HEADER.unpack_from(self._received)
            if length == CANCELLED:
                del self._received[: HEADER.size]
                self._cancel(number)
                continue
            end = HEADER.size + length
            if len(self._received) < end:
                return
            question = bytes(memoryview(self._received)[HEADER.size : end])
            del self._received[:end]
            self._start(number, question)

    def _cancel(self, number: int) -> None:
        for fd in [fd for fd, child in self._children.items() if child.number == number]:
            os.kill(self._children[fd].pid, signal.SIGKILL)
            self._forget(fd)

    def _start(self, number: int, question: bytes) -> None:
        parent = os.getpid()
        ends: tuple[int, ...] = ()
        try:
            ends = read, write = os.pipe()
            pid = os.fork()
        except OSError as error:  # when others have ended there is room for a child again
            for end in ends:
                os.close(end)
            log.error("a request can't be tried: %s", error)
            self._reply(number, failure=Failure.UNTRIED)
            return
        if not pid:
            try:
                os.close(read)
                self._connection.close()
                _limit(self._limits, parent)
                answer = self._try(question).encode()
                while answer:
                    answer = answer[os.write(write, answer) :]
                os._exit(0)
            finally:
                os._exit(1)
        os.close(write)
        deadline = time.monotonic() + _WALL_TIME * self._limits.seconds
        self._children[read] = _Child(number, pid, deadline)
        self._selector.register(read, selectors.EVENT_READ)

    def _read(self, fd: int) -> None:
        data = os.read(fd, _READ_BYTES)
        if data:
            self._children[fd].answer += data
        else:
            self._end(fd, Failure.DIED)

    def _forget(self, fd: int) -> tuple[_Child, int]:
        """The child whose answer that is, and its exit status."""
        child = self._children.pop(fd)
        self._selector.unregister(fd)
        os.close(fd)
        _, status = os.waitpid(child.pid, 0)
        return child, status

    def _end(self, fd: int, failure: Failure) -> None:
        """Reply with a child's answer; with `failure` if it has none."""
        child, status = self._forget(fd)
        if status == 0:
            self._reply(child.number, answer=child.answer.decode())
        elif os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
            self._reply(child.number, failure=Failure.SLOW)
        else:
            self._reply(child.number, failure=failure)

    def _reply(self, number: int, **answer_or_failure: str) -> None:
        line = json.dumps({"number": number, **answer_or_failure})
        self._connection.sendall(line.encode() + b"\n")


def _limit(limits: Limits, parent: int) -> None:
    request_signal(signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the request
        os._exit(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, limits.seconds)
    most = _data_bytes() + limits.memory_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    with suppress(OSError):  # the first to be killed where memory is short
        (_PROC / "oom_score_adj").write_text("1000")


def _data_bytes() -> int:
    return int((_PROC / "statm").read_text().split()[5]) * resource.getpagesize()


def _close_all_but(kept: int) -> None:
    """Close what the fork has of the worker's: its connections must end when the worker does.

    Their numbers stay taken, by /dev/null: the copies of the worker's objects close them once more
    when they are collected, and would close the pipe of an answer that had got the number.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for number in [int(path.name) for path in (_PROC / "fd").iterdir()]:
        if number > 2 and number not in (kept, null):
            with suppress(OSError):
                os.fstat(number)  # not that of the folder just read
                os.dup2(null, number)

"""The process that tries grammars before the engine gets them.

Some regular expressions, grammars and schemas take vLLM minutes or gigabytes to compile, or end its
process. So each is compiled here first, in a child process of its own, with limits of time and
memory, as vLLM would do it: the same checks, the same compiler, and the first tokens.

The worker forks this process before the engine. It has one thread, and nothing that it compiles is
kept. `grammar_check.py` is the worker's side.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from shared.platform.parent_death import request_signal

log = logging.getLogger("flotilla.grammar")

Try = Callable[[dict[str, Any], str], tuple[str, str]]
"""(structured outputs, engine's backend or an empty string) -> (error or an empty string, backend).
"""

CHILDREN = 4
"""Grammars that are tried at once."""
_NICENESS = 5
_WALL_TIME = 2.0
_PROC = Path("/proc/self")
_MAX_ERROR_CHARS = 2000
_READ_BYTES = 1 << 16


class Limits(NamedTuple):
    """Of one child."""

    seconds: float
    """Of CPU time, in all its threads. On a busy machine that takes longer: twice as long at most.
    """
    memory_bytes: int


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
        self._too_slow = f"it takes more than {limits.seconds:g} s to compile"
        self._try = attempt
        self._children: dict[int, _Child] = {}  # by the descriptor of the answer
        self._waiting: deque[dict[str, Any]] = deque()
        self._received = b""  # the begin of a line
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection, selectors.EVENT_READ)

    def run(self) -> None:
        while True:
            while self._waiting and len(self._children) < CHILDREN:
                self._start(self._waiting.popleft())
            deadlines = [child.deadline for child in self._children.values()]
            left = min(deadlines) - time.monotonic() if deadlines else None
            for key, _ in self._selector.select(None if left is None else max(0.0, left)):
                if key.fileobj is self._connection:
                    data = self._connection.recv(_READ_BYTES)
                    if not data:  # the worker has ended
                        return
                    self._receive(data)
                else:
                    self._read(key.fd)
            now = time.monotonic()
            for fd in [fd for fd, child in self._children.items() if child.deadline <= now]:
                os.kill(self._children[fd].pid, signal.SIGKILL)
                self._end(fd, self._too_slow)

    def _receive(self, data: bytes) -> None:
        *lines, self._received = (self._received + data).split(b"\n")
        self._waiting.extend(map(json.loads, lines))

    def _start(self, question: dict[str, Any]) -> None:
        read, write = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            try:
                os.close(read)
                self._connection.close()
                _limit(self._limits, parent)
                error, backend = self._try(question["grammar"], question["backend"])
                answer = {"error": error[:_MAX_ERROR_CHARS], "backend": backend}
                os.write(write, json.dumps(answer).encode())
            finally:
                os._exit(0)
        os.close(write)
        deadline = time.monotonic() + _WALL_TIME * self._limits.seconds
        self._children[read] = _Child(question["number"], pid, deadline)
        self._selector.register(read, selectors.EVENT_READ)

    def _read(self, fd: int) -> None:
        data = os.read(fd, _READ_BYTES)
        if data:
            self._children[fd].answer += data
        else:
            self._end(fd, "the compiler failed, or needed too much memory")

    def _end(self, fd: int, failure: str) -> None:
        """Reply with a child's answer; with `failure` if it has none."""
        child = self._children.pop(fd)
        self._selector.unregister(fd)
        os.close(fd)
        _, status = os.waitpid(child.pid, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
            failure = self._too_slow
        try:
            reply = json.loads(child.answer)
        except ValueError:
            reply = {"error": f"The grammar can't be used: {failure}.", "backend": ""}
        reply["number"] = child.number
        self._connection.sendall(json.dumps(reply).encode() + b"\n")


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
    """Close what the fork has of the worker's: its connections must end when the worker does."""
    for number in [int(path.name) for path in (_PROC / "fd").iterdir()]:
        if number > 2 and number != kept:
            with suppress(OSError):
                os.close(number)

"""What other clients notice: streams, health probes and memory, each watched by a thread."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from load_tests.faults.hostile.raw_http import NEIGHBOUR_KEY, is_reachable, post
from load_tests.systems.engine import CHAT_PATH, MODEL
from tests.harness.processes import Process

_TIMEOUT_S = 60.0
_PROBE_EVERY_S = 0.1
_SAMPLE_EVERY_S = 0.05
_SAMPLING_SHARE = 0.2
"""Of a core, at most: one sample of a worker with vLLM takes tens of milliseconds."""
_STREAMS = 4


class Bystanders:
    """Ordinary clients, and the memory of all processes, measured from `start` to `end`."""

    def __init__(self, port: int, processes: Mapping[str, Process], tokens: int) -> None:
        """`processes` by label: whose memory is sampled. `tokens`: length of a stream."""
        self.longest_silence_s = 0.0
        """Longest time between two reads of a stream, or from a request to its first byte."""
        self.slowest_probe_s = 0.0
        """Longest `GET /healthz` on a new connection."""
        self.failures: list[str] = []
        """Streams and probes that failed."""
        self.peak: dict[str, int] = {}
        """Highest resident bytes by process."""
        self._port = port
        self._body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Say something."}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
        }
        self._processes = processes
        self._measuring = threading.Event()
        self._ended = threading.Event()
        targets = [*[self._read] * _STREAMS, self._probe, self._sample]
        self._threads = [threading.Thread(target=target, daemon=True) for target in targets]

    def start(self) -> None:
        """Start the clients; nothing is measured before `measure`."""
        for thread in self._threads:
            thread.start()

    def measure(self) -> None:
        """Start measuring."""
        self.peak = self.memory()
        self._measuring.set()

    def end(self) -> None:
        """Stop the clients."""
        self._ended.set()
        for thread in self._threads:
            thread.join(2 * _TIMEOUT_S)

    def memory(self) -> dict[str, int]:
        """Return the current bytes by process: proportional set size, descendants included."""
        return {label: process.memory().pss for label, process in self._processes.items()}

    def _read(self) -> None:
        while not self._ended.is_set():
            try:
                self._read_one()
            except OSError as error:
                self._fail(f"stream: {type(error).__name__}")
                time.sleep(_PROBE_EVERY_S)

    def _read_one(self) -> None:
        tail = b""
        with contextlib.closing(socket.create_connection(("127.0.0.1", self._port))) as connection:
            connection.settimeout(_TIMEOUT_S)
            last = time.monotonic()
            connection.sendall(post(CHAT_PATH, self._body, NEIGHBOUR_KEY))
            while not self._ended.is_set() and not tail.endswith(b"0\r\n\r\n"):
                data = connection.recv(1 << 16)
                now = time.monotonic()
                if self._measuring.is_set():
                    self.longest_silence_s = max(self.longest_silence_s, now - last)
                last = now
                if not data:
                    return self._fail(f"stream: cut, {_error(tail)}")
                tail = (tail + data)[-2000:]
        if b"[DONE]" not in tail and not self._ended.is_set():
            self._fail(f"stream: {_error(tail)}")
        return None

    def _probe(self) -> None:
        while not self._ended.is_set():
            began = time.monotonic()
            reachable = is_reachable(self._port)
            if self._measuring.is_set():
                self.slowest_probe_s = max(self.slowest_probe_s, time.monotonic() - began)
                if not reachable:
                    self._fail("probe: no answer in 5 s")
            self._ended.wait(_PROBE_EVERY_S)

    def _sample(self) -> None:
        pause_s = _SAMPLE_EVERY_S
        while not self._ended.wait(pause_s):
            began = time.monotonic()
            for label, size in self.memory().items():
                self.peak[label] = max(self.peak.get(label, 0), size)
            pause_s = max(_SAMPLE_EVERY_S, (time.monotonic() - began) / _SAMPLING_SHARE)

    def _fail(self, what: str) -> None:
        if not self._ended.is_set():
            self.failures.append(what)


def _error(tail: bytes) -> str:
    """Return the code of the error event at the end of a stream, or the end itself."""
    at = tail.rfind(b'{"error"')
    with contextlib.suppress(ValueError, KeyError, TypeError):
        found: Any = json.JSONDecoder().raw_decode(tail[at:].decode())[0]
        return str(found["error"]["code"])
    return tail[-60:].decode(errors="replace")

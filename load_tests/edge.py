"""`edge`: one tenant's hostile bodies, beside the streams of another tenant.

Each row has a new gateway, whose memory is compared with that before. The other tenant streams all
the time; his longest wait for a chunk is shown beside the one before the attack. Simulated engine.
Exit status 0: every limit of memory was kept. 1: otherwise. Waits have no limit, as they depend on
what else runs on this machine.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import httpx

from load_tests.harness.fleet import Fleet, FleetShape
from load_tests.harness.session import OUTPUT, add_options, print_tables, save_result, session
from load_tests.harness.table import Table
from tests.harness.client import CHAT, MODEL, batch_line
from tests.harness.process_state import anonymous_bytes
from tests.harness.processes import Process
from tests.harness.waiting import wait_for

HELP = "hostile bodies, beside the streams of another tenant"
_MB = 1 << 20
_KEY, _OTHER_KEY = "key-of-hostile-1234", "key-of-neighbour-1234"
_ALLOWED_MB = {"bombs": 50, "nested lines": 100, "large bodies": 200}
"""How much each process may grow. A body of 32 MiB is in memory several times."""
_UNPACKED = 1 << 30
_STORED_BYTES = 8 * _MB
_QUIET_S = 3.0
_SAMPLE_S = 0.02

Act = Callable[["_Scene"], Mapping[str, int]]
"""One tenant's attack; what he was answered, and how often."""


@dataclass(frozen=True, slots=True)
class Row:
    """What one attack did."""

    name: str
    grown_mb: float
    """Of the process that grew most."""
    quiet_gap_ms: float
    """Longest time between two chunks of the other tenant's stream before the attack."""
    gap_ms: float
    """The same during the attack."""
    answers: Mapping[str, int]
    """What the attacker was answered, and how often."""

    @property
    def kept(self) -> bool:
        """Whether memory grew by no more than is allowed."""
        kind = self.name.partition(":")[0]
        return self.grown_mb <= _ALLOWED_MB[kind]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    options = {
        "--bombs": (300, "compressed bodies of each coding, of 1 GB each"),
        "--at-once": (50, "of these at one time"),
    }
    add_options(parser, {**options, **OUTPUT})


def main(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    attacks: dict[str, Act] = {
        **{
            f"bombs: {coding}": _bombs(coding, arguments.bombs, arguments.at_once)
            for coding in ("gzip", "zstd")
        },
        "nested lines: objects": _nested(b'{"a":', b"}"),
        "nested lines: lists": _nested(b"[", b"]"),
        "large bodies: one worker": _large(lambda body: (body, {})),
    }
    # The other tenant streams from a worker of his own, so what stops him is the gateway.
    elsewhere: dict[str, Act] = {
        "large bodies: plain": _large(lambda body: (body, {})),
        "large bodies: gzip": _large(lambda body: (gzip.compress(body, 1), _coded("gzip"))),
    }
    with session() as processes:
        settings = {
            "api_keys": f"hostile:{_KEY},neighbour:{_OTHER_KEY}",
            "storage_url": str(processes.folder / "storage"),
        }
        rows: list[Row] = []
        for workers, acts in ((1, attacks), (2, elsewhere)):
            shape = FleetShape(workers=workers, step_ms=10.0, settings=settings)
            fleet = Fleet(processes.folder / f"fleet-{workers}", shape)
            try:
                rows += [_run(fleet, name, attack) for name, attack in acts.items()]
            finally:
                fleet.close()
    print_tables([_table(rows)])
    save_result(arguments.json, "edge", {"rows": [asdict(row) for row in rows]})
    missed = [row.name for row in rows if not row.kept]
    print(f"MORE THAN ALLOWED: {', '.join(missed)}" if missed else "KEPT")
    return 1 if missed else 0


def _run(fleet: Fleet, name: str, attack: Act) -> Row:
    gateway, maintenance = fleet.stack.gateway(), fleet.stack.maintenance()
    try:
        with _Neighbour(gateway.url) as neighbour:
            neighbour.longest_gap_s()
            time.sleep(_QUIET_S)
            quiet = neighbour.longest_gap_s()
            with _Scene(gateway, maintenance) as scene:
                answers = attack(scene)
            during = neighbour.longest_gap_s()
    finally:
        for process in (gateway, maintenance):
            process.kill()
    row = Row(name, scene.grown_bytes / _MB, 1e3 * quiet, 1e3 * during, dict(answers))
    print(f"{name}: +{row.grown_mb:.0f} MB, {row.gap_ms:.0f} ms", file=sys.stderr)
    return row


def _table(rows: Sequence[Row]) -> Table:
    columns = {
        "": [row.name for row in rows],
        "grown by\nMB": [f"{row.grown_mb:.0f}" for row in rows],
        "longest gap\nbefore, ms": [f"{row.quiet_gap_ms:.0f}" for row in rows],
        "longest gap\nms": [f"{row.gap_ms:.0f}" for row in rows],
        "answers": [", ".join(f"{n} x {what}" for what, n in row.answers.items()) for row in rows],
    }
    return Table.of_columns("A hostile tenant beside another one's stream", columns)


class _Scene:
    """The attacked processes, whose memory is watched during the context."""

    def __init__(self, gateway: Process, maintenance: Process) -> None:
        self.url = gateway.url
        self._watched = (gateway, maintenance)
        self._before = [anonymous_bytes(each) for each in self._watched]
        self.grown_bytes = 0
        """The most that one of them has grown by."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> _Scene:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(_SAMPLE_S):
            for process, before in zip(self._watched, self._before, strict=True):
                grown = anonymous_bytes(process) - before
                self.grown_bytes = max(self.grown_bytes, grown)

    def post(self, path: str, key: str = _KEY, **sent: Any) -> httpx.Response:
        """Send one request on a connection of its own."""
        headers = {"authorization": f"Bearer {key}", **sent.pop("headers", {})}
        return httpx.post(self.url + path, headers=headers, timeout=120, **sent)


class _Neighbour:
    """Another tenant, who streams one answer after the other during the context, in a process of
    his own: what the attacker computes here does not delay him."""

    def __init__(self, url: str) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._gap_s = spawn.Value("d", 0.0)
        self._over = spawn.Event()
        self._process = spawn.Process(target=_stream, args=(url, self._gap_s, self._over))

    def __enter__(self) -> _Neighbour:
        self._process.start()
        wait_for(lambda: self._gap_s.value, "the other tenant streams")
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._process.join()

    def longest_gap_s(self) -> float:
        """The longest wait for a chunk since the last call."""
        gap: float = self._gap_s.value
        self._gap_s.value = 0.0
        return gap


def _stream(url: str, gap_s: Any, over: Any) -> None:
    body = {**_chat("Go on."), "stream": True, "max_tokens": 1000, "ignore_eos": True}
    headers = {"authorization": f"Bearer {_OTHER_KEY}"}
    with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
        while not over.is_set():
            with client.stream("POST", CHAT, json=body) as answer:
                answer.raise_for_status()
                last = time.monotonic()
                for _ in answer.iter_raw():
                    now = time.monotonic()
                    gap_s.value, last = max(gap_s.value, now - last), now
                    if over.is_set():
                        break


def _chat(text: str) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 1}


def _coded(coding: str) -> dict[str, str]:
    return {"content-encoding": coding, "content-type": "application/json"}


# --- attacks ---


def _bombs(coding: str, n: int, at_once: int) -> Act:
    """Bodies that unpack to 1 GB of a chat's text, many at one time."""

    def attack(scene: _Scene) -> Mapping[str, int]:
        bomb = b"".join(_packed(coding))

        def send(_: int) -> str:
            try:
                return str(scene.post(CHAT, content=bomb, headers=_coded(coding)).status_code)
            except httpx.TransportError as error:
                return type(error).__name__

        with ThreadPoolExecutor(at_once) as threads:
            return Counter(threads.map(send, range(n)))

    return attack


def _packed(coding: str) -> Iterator[bytes]:
    if coding == "gzip":
        coder: Any = zlib.compressobj(9, wbits=31)
    elif sys.version_info >= (3, 14):
        from compression import zstd

        coder = zstd.ZstdCompressor()
    else:
        from backports import zstd

        coder = zstd.ZstdCompressor()
    yield coder.compress(json.dumps(_chat("")).encode().partition(b'"content": "')[0])
    yield coder.compress(b'"content": "')
    spaces = b" " * _MB
    for _ in range(_UNPACKED // _MB):
        yield coder.compress(spaces)
    yield coder.flush()


def _upload(scene: _Scene, key: str, content: bytes, purpose: str) -> str:
    form = {"files": {"file": ("file", content)}, "data": {"purpose": purpose}}
    file_id: str = scene.post("/v1/files", key, **form).raise_for_status().json()["id"]
    return file_id


def _nested(opening: bytes, closing: bytes) -> Act:
    """A batch with a line of 8 MB of nested JSON, beside a batch of the other tenant."""

    def attack(scene: _Scene) -> Mapping[str, int]:
        depth = _STORED_BYTES // (len(opening) + len(closing))
        deep = opening * depth + b"1" + closing * depth
        line = b'{"custom_id": "deep", "method": "POST", "url": "%b", "body": %b}'
        hostile = _batch(scene, _KEY, line % (CHAT.encode(), deep))
        other = _batch(scene, _OTHER_KEY, b"\n".join(batch_line(str(n)) for n in range(20)))
        return Counter({f"{name}: {state}": 1 for name, state in (hostile(), other())})

    return attack


def _batch(scene: _Scene, key: str, lines: bytes) -> Callable[[], tuple[str, str]]:
    """Begin a batch; what is returned waits for its end."""
    began = time.monotonic()
    body = {"input_file_id": _upload(scene, key, lines, "batch"), "endpoint": CHAT}
    answer = scene.post("/v1/batches", key, json={**body, "completion_window": "24h"})
    url = f"{scene.url}/v1/batches/{answer.raise_for_status().json()['id']}"
    headers = {"authorization": f"Bearer {key}"}

    def end() -> tuple[str, str]:
        while True:
            found = httpx.get(url, headers=headers, timeout=60).json()
            if found["status"] in ("completed", "failed"):
                took = time.monotonic() - began
                return ("hostile" if key == _KEY else "other"), f"{found['status']} ({took:.1f} s)"
            time.sleep(0.05)

    return end


def _large(code: Callable[[bytes], tuple[bytes, dict[str, str]]]) -> Act:
    """Bodies of 32 MiB with a picture, one after the other."""

    def attack(scene: _Scene) -> Mapping[str, int]:
        part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
        body = json.dumps({**_chat(""), "messages": [{"role": "user", "content": [part]}]}).encode()
        whole = body.replace(b"base64,", b"base64," + b"A" * (32 * _MB - len(body)))
        content, headers = code(whole)
        headers["content-type"] = "application/json"
        return Counter(
            str(scene.post(CHAT, content=content, headers=headers).status_code) for _ in range(3)
        )

    return attack

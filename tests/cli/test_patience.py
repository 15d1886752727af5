"""Commands that follow something outlast a gateway that is busy for a while."""

from __future__ import annotations

import functools
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.harness.cli import run_flotilla
from tests.harness.client import http, submit
from tests.harness.fleet import Process, Stack

Flotilla = Callable[..., Any]
REFUSALS = 2
"""Of the first requests to each path."""


class BusyDoor:
    """Stands in front of a gateway; refuses with `status` and a time at first."""

    def __init__(self, gateway: Process) -> None:
        self.status = 503
        self.retry_after: str | None = "0"
        self.refused: Counter[str] = Counter()
        door = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                line = f"{self.command} {self.path}"
                if door.refused[line] < REFUSALS:
                    door.refused[line] += 1
                    self._answer(door.status, {"retry-after": door.retry_after}, b"busy")
                    return
                sent = {name: self.headers[name] for name in ("content-type",)}
                found = http.request(
                    self.command,
                    gateway.url + self.path,
                    content=body,
                    headers={name: value for name, value in sent.items() if value},
                )
                kind = {"content-type": found.headers.get("content-type")}
                self._answer(found.status_code, kind, found.content)

            do_POST = do_GET  # noqa: N815

            def _answer(self, status: int, headers: dict[str, str | None], body: bytes) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    if value is not None:
                        self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def gateway(module_stack: Stack) -> Process:
    storage = str(module_stack.folder / "files")
    module_stack.worker(sim_step_ms=2, sim_step_us_per_seq=0)
    module_stack.maintenance(storage_url=storage)
    return module_stack.gateway(storage_url=storage)


@pytest.fixture
def door(gateway: Process) -> Iterator[BusyDoor]:
    door = BusyDoor(gateway)
    yield door
    door.close()


@pytest.fixture
def flotilla(door: BusyDoor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Flotilla:
    """Run a command in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return functools.partial(run_flotilla, environment={"FLOTILLA_URL": door.url})


BODY = {"model": "simulated", "prompt": "hello", "max_tokens": 5, "ignore_eos": True}


@pytest.mark.parametrize("status", [503, 429])
def test_a_job_is_followed(
    gateway: Process, door: BusyDoor, flotilla: Flotilla, status: int
) -> None:
    door.status = status
    job = submit(gateway, BODY, "/v1/completions")
    assert "[simulated]" in flotilla("jobs", "follow", job).stdout
    assert door.refused[f"GET /jobs/{job}/events"] == REFUSALS


def test_a_batch_is_run_and_followed(door: BusyDoor, flotilla: Flotilla, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(f"{json.dumps(BODY)}\n" * 3)
    run = ("batch", "run", "in.jsonl", "-o", "out.jsonl", "--endpoint", "/v1/completions")
    shown = flotilla(*run, "--json").stdout
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 3
    refused = {line.partition("?")[0] for line in door.refused}
    assert {"POST /v1/files", "GET /v1/batches", "POST /v1/batches"} <= refused
    door.refused.clear()
    batch = json.loads(shown[f"\n{shown}".rindex("\n{") :])["id"]  # behind lines of its progress
    flotilla("batch", "follow", batch)
    assert door.refused.total() >= REFUSALS


def test_a_refusal_without_a_time_ends_the_command(
    gateway: Process, door: BusyDoor, flotilla: Flotilla
) -> None:
    door.retry_after = None
    job = submit(gateway, BODY, "/v1/completions")
    flotilla("jobs", "follow", job, code=4)
    assert door.refused.total() == 1

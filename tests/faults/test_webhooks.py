"""Kills of Celery and of the whole maintenance process: no event is lost, none has two ids."""

from __future__ import annotations

import http.server
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.harness.client import chat, submit
from tests.harness.fleet import Process, Stack
from tests.harness.up import children
from tests.harness.waiting import wait_for

JOBS = 40
ALLOW = {"webhook_allow": "127.0.0.1"}


class Receiver(http.server.ThreadingHTTPServer):
    """An endpoint on loopback that takes its time, so that a kill finds events on their way."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, str], bytes]] = []
        super().__init__(("127.0.0.1", 0), Answer)


class Answer(http.server.BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        body = self.rfile.read(length)
        if len(body) < length:
            return  # its sender was killed
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.calls.append((headers, body))
        time.sleep(0.2)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        thread = threading.Thread(target=receiver.serve_forever)
        thread.start()
        yield receiver
        receiver.shutdown()
        thread.join()


def test_every_event_arrives_with_one_id(
    stack: Stack, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    stack.worker(sim_step_ms=2, sim_step_us_per_seq=0)
    gateway, maintenance = stack.gateway(**ALLOW), stack.maintenance(**ALLOW)
    with OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as client:
        url = f"http://127.0.0.1:{receiver.server_port}/hook"
        endpoint = client.webhooks.create(name="n", url=url, event_types=["job.completed"])
        made = {submit(gateway, chat("x", max_tokens=2)) for _ in range(JOBS)}
        for events, whole in ((3, False), (15, True), (28, False)):
            wait_for(lambda n=events: len(receiver.calls) >= n, f"{events} events")
            maintenance = killed(stack, maintenance, whole=whole)
        told = defaultdict(set)

        def all_are_told() -> bool:
            while receiver.calls:
                headers, body = receiver.calls.pop()
                event = client.webhooks.unwrap(body, headers, secret=endpoint.signing_secret)
                told[event.data.id].add(headers["webhook-id"])
            return len(told) == JOBS

        wait_for(all_are_told, "each job's event arrives", 120)
    assert told.keys() == made
    assert {len(ids) for ids in told.values()} == {1}
    assert len(set.union(*told.values())) == JOBS


def killed(stack: Stack, maintenance: Process, *, whole: bool) -> Process:
    """Kill Celery alone or the whole process; what goes on behind the kill."""
    celery, *_ = wait_for(lambda: children(maintenance.popen.pid), "Celery runs")
    if not whole:
        os.kill(celery, signal.SIGKILL)
        return maintenance
    maintenance.kill()
    return stack.maintenance(**ALLOW)

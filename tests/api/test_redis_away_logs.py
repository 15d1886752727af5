"""What processes write while Redis is away: each kind of line seldom, and one when it is back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.harness.client import http
from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisServer
from tests.harness.waiting import wait_for

LEAST_S = 9.5
"""Between two lines of one kind; a clock of a loaded machine may be late."""


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis")
    server.start()
    yield server
    server.stop()


def lines(process: Process, after: int = 0) -> list[dict[str, Any]]:
    """Its complete log lines but the first ones."""
    text = process.log.read_text().splitlines(keepends=True)
    found = [json.loads(line) for line in text if line.startswith("{") and line.endswith("}\n")]
    return found[after:]


def kind(line: dict[str, Any]) -> str:
    return f"{line['logger']}: {line['message'].partition(':')[0]}"


def warnings(process: Process, after: int) -> list[dict[str, Any]]:
    ours = [line for line in lines(process, after) if line["logger"].startswith("flotilla.")]
    return [line for line in ours if line["level"] == "warning"]


def repeated(process: Process, after: int) -> bool:
    """Whether it has written a line of one kind again."""
    return max(Counter(map(kind, warnings(process, after))).values(), default=0) > 1


def back(process: Process, after: int) -> list[dict[str, Any]]:
    """What tells that Redis is back."""
    infos = [line for line in lines(process, after) if line["level"] == "info"]
    return [line for line in infos if "again" in line["message"]]


def test_each_kind_of_line_comes_seldom(redis: RedisServer, tmp_path: Path) -> None:
    stack = Stack(redis.url, tmp_path)
    body = {"messages": [{"role": "user", "content": "hello"}]}
    try:
        gateway, worker, maintenance = stack.gateway(), stack.worker(), stack.maintenance()
        wait_for(partial(lines, maintenance), "it has begun")
        before = [(process, len(lines(process))) for process in (gateway, worker, maintenance)]
        redis.stop()
        for _ in range(20):
            assert http.post(f"{gateway.url}/v1/chat/completions", json=body).status_code == 503
        for process, after in before:
            wait_for(partial(repeated, process, after), f"{process.name} has warned again")
            last: dict[str, datetime] = {}
            for line in warnings(process, after):
                at = datetime.fromisoformat(line["timestamp"])
                before_at = last.get(kind(line))
                assert before_at is None or (at - before_at).total_seconds() > LEAST_S, line
                last[kind(line)] = at
        redis.start()
        for process, after in before[:2]:
            wait_for(partial(back, process, after), f"{process.name} tells that it is back")
            assert len(back(process, after)) == 1
    finally:
        stack.close()

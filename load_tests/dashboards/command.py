"""`dashboards`: what open dashboards cost a gateway and Redis.

Streams of `/admin/stream` are held open against a fleet that is busy: all slots taken, a queue
behind them. Rounds with 0, 1 and `--streams` of them alternate. Exit status 1 if they cost more
than 5 % of a core, or ask Redis more often than one does.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing
from statistics import median
from typing import NamedTuple

from load_tests.harness.fleet import Fleet, FleetShape
from load_tests.harness.session import (
    OUTPUT,
    add_options,
    print_progress,
    print_tables,
    save_result,
    session,
)
from load_tests.harness.table import Table
from load_tests.systems.engine import CHAT_PATH, request_body
from tests.harness.client import http

HELP = "what open dashboards cost a gateway and Redis"

MAX_CORE_SHARE = 0.05
MAX_COMMANDS_FACTOR = 1.15
"""How much more often than one stream many may ask Redis: a reading more or less at the edges."""
_BUSY = FleetShape(workers=2, step_ms=2000)
_JOBS = 200
_TOKENS = 8000
_SETTLE_S = 2.0
_OF_THE_OVERVIEW = ("xinfo|stream", "xpending")
"""Commands that nothing else sends here; the others vary with what the workers do."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    options = {
        "--streams": (50, "open dashboards"),
        "--seconds": (15.0, "of each part"),
        "--rounds": (3, "rounds over all parts"),
    }
    add_options(parser, {**options, **OUTPUT})


class DashboardCost(NamedTuple):
    """What was measured in one round, or the medians over all."""

    streams: float
    gateway_core: float
    """Share of one core."""
    redis_core: float
    commands_per_s: float
    """All commands, the workers' too."""
    overview_commands_per_s: float
    """Commands that only the overview sends here."""
    events_per_stream_s: float
    bytes_per_event: float


def main(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    found: dict[int, list[DashboardCost]] = {count: [] for count in (0, 1, arguments.streams)}
    body = {"endpoint": CHAT_PATH, "body": request_body(tokens=_TOKENS, stream=False)}
    with session() as processes, closing(Fleet(processes.folder / "fleet", _BUSY)) as fleet:
        for _ in range(_JOBS):
            http.post(f"{fleet.urls[0]}/jobs", json=body)
        for number in range(arguments.rounds):
            for count, costs in found.items():
                costs.append(asyncio.run(_measure(fleet, count, arguments.seconds)))
            print_progress(f"round {number + 1} of {arguments.rounds} is done")
    medians = [DashboardCost(*map(median, zip(*each, strict=True))) for each in found.values()]
    print_tables([table(medians)], arguments)
    save_result(arguments.json, "dashboards", {"costs": [cost._asdict() for cost in medians]})
    good, verdict = evaluate(medians)
    print(verdict)
    return 0 if good else 1


async def _measure(fleet: Fleet, streams: int, seconds: float) -> DashboardCost:
    async with AsyncExitStack() as stack:
        viewers = [_Viewer(fleet.ports[0]) for _ in range(streams)]
        for viewer in viewers:
            await stack.enter_async_context(viewer)
        await asyncio.sleep(_SETTLE_S)
        began, before = time.monotonic(), _read(fleet, viewers)
        await asyncio.sleep(seconds)
        passed_s, after = time.monotonic() - began, _read(fleet, viewers)
    *per_s, events, size = (b - a for a, b in zip(before, after, strict=True))
    per_stream_s = events / passed_s / streams if streams else 0.0
    size_of_each = size / events if events else 0.0
    rates = (growth / passed_s for growth in per_s)
    return DashboardCost._make([streams, *rates, per_stream_s, size_of_each])


def _read(fleet: Fleet, viewers: Sequence[_Viewer]) -> Sequence[float]:
    """CPU seconds of gateway and Redis, commands, those of the overview, events, their bytes."""
    counters = fleet.redis.counters()
    return (
        fleet.gateways[0].cpu_s(),
        fleet.redis.process.cpu_s(),
        counters["commands"],
        sum(counters.get(name, 0.0) for name in _OF_THE_OVERVIEW),
        sum(viewer.events for viewer in viewers),
        sum(viewer.bytes for viewer in viewers),
    )


class _Viewer:
    """One open stream of the overview; counts its events."""

    def __init__(self, port: int) -> None:
        self.events = 0
        self.bytes = 0
        self._port = port

    async def __aenter__(self) -> _Viewer:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writer.write(b"GET /admin/stream HTTP/1.1\r\nhost: localhost\r\n\r\n")
        self._task = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        self._writer.close()

    async def _read(self) -> None:
        while data := await self._reader.read(1 << 18):
            self.events += data.count(b"event: overview")
            self.bytes += len(data)


def table(costs: Sequence[DashboardCost]) -> Table:
    """One row for each number of streams."""
    columns = {
        "dashboards": "{:.0f}",
        "gateway\n% of a core": "{:.1%}",
        "Redis\n% of a core": "{:.1%}",
        "Redis\ncommands/s": "{:.0f}",
        "of the\noverview": "{:.1f}",
        "events/s\nof each": "{:.2f}",
        "bytes\nper event": "{:.0f}",
    }
    rows = [
        [shape.format(value) for shape, value in zip(columns.values(), cost, strict=True)]
        for cost in costs
    ]
    return Table("Open dashboards", list(columns), rows)


def evaluate(costs: Sequence[DashboardCost]) -> tuple[bool, str]:
    """Whether the limits are kept, and a sentence. `costs`: of 0, 1 and many streams."""
    none, one, many = costs
    share = many.gateway_core - none.gateway_core
    factor = many.overview_commands_per_s / (one.overview_commands_per_s or 1.0)
    good = share <= MAX_CORE_SHARE and factor <= MAX_COMMANDS_FACTOR
    return good, (
        f"{many.streams:.0f} dashboards cost {share:.1%} of a gateway's core (limit "
        f"{MAX_CORE_SHARE:.0%}), and {factor:.2f} times the Redis commands of one (limit "
        f"{MAX_COMMANDS_FACTOR:.2f})"
    )

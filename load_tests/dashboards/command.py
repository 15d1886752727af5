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
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from load_tests.harness.http import free_port, post_json
from load_tests.harness.processes import Process
from load_tests.harness.session import print_progress, result_path, save_result, session
from load_tests.harness.table import Table
from load_tests.systems.engine import CHAT_PATH, EngineTiming, request_body
from load_tests.systems.system import System

HELP = "what open dashboards cost a gateway and Redis"

MAX_CORE_SHARE = 0.05
MAX_COMMANDS_FACTOR = 1.15
"""How much more often than one stream many may ask Redis: a reading more or less at the edges."""
_TIMING = EngineTiming(step_ms=2000, step_us_per_seq=0, max_num_seqs=64)
_WORKERS = 2
_JOBS = 200
_TOKENS = 8000
_SETTLE_S = 2.0
_OF_THE_OVERVIEW = ("xinfo|stream", "xpending")
"""Commands that nothing else sends here; the others vary with what the workers do."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument("--streams", type=int, default=50, help="open dashboards (default 50)")
    parser.add_argument("--seconds", type=float, default=15, help="of each part (default 15)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds over all parts (default 3)")
    parser.add_argument("--json", type=Path, help="result file (default load_tests/results/...)")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")


@dataclass(frozen=True, slots=True)
class DashboardCost:
    """Medians over the rounds."""

    streams: int
    gateway_core: float
    """Share of one core."""
    redis_core: float
    commands_per_s: float
    """All commands, the workers' too."""
    overview_commands_per_s: float
    """Commands that only the overview sends here."""
    events_per_stream_s: float
    bytes_per_event: float


class _BusyFleet(System):
    """Redis, two workers whose slots are all taken, jobs that wait, one gateway."""

    name = "dashboards"

    def start(self) -> None:
        """Start all of it and submit the jobs."""
        redis_url = self.start_redis().url
        for n in range(_WORKERS):
            port = free_port()
            self.start_flotilla(
                "worker", f"worker {n + 1}", "engine", port, worker_port=port, redis_url=redis_url
            )
        port = free_port()
        self.start_flotilla("gateway", "gateway", "front", port, port=port, redis_url=redis_url)
        self.ports = [port]
        body = request_body(tokens=_TOKENS, stream=False)
        for _ in range(_JOBS):
            post_json(port, "/jobs", {"endpoint": CHAT_PATH, "body": body})

    def process(self, label: str) -> Process:
        """The process with this label."""
        return next(process for process in self.processes if process.label == label)


def main(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    counts = [0, 1, arguments.streams]
    with session() as processes:
        fleet = _BusyFleet(processes, _TIMING)
        fleet.start()
        found: dict[int, list[DashboardCost]] = {count: [] for count in counts}
        for number in range(arguments.rounds):
            for count in counts:
                found[count].append(asyncio.run(_measure(fleet, count, arguments.seconds)))
            print_progress(f"round {number + 1} of {arguments.rounds} is done")
    costs = [_median(each) for each in found.values()]
    print(table(costs).render(markdown=arguments.markdown))
    save_result(arguments.json or result_path("dashboards"), {"costs": [asdict(c) for c in costs]})
    good, verdict = evaluate(costs)
    print(verdict)
    return 0 if good else 1


async def _measure(fleet: _BusyFleet, streams: int, seconds: float) -> DashboardCost:
    gateway, redis = fleet.process("gateway"), fleet.process("redis")
    async with AsyncExitStack() as stack:
        viewers = [_Viewer(fleet.ports[0]) for _ in range(streams)]
        for viewer in viewers:
            await stack.enter_async_context(viewer)
        await asyncio.sleep(_SETTLE_S)
        began = time.monotonic()
        before, commands_before = (gateway.cpu_s(), redis.cpu_s()), fleet.redis_counters()
        seen = [(viewer.events, viewer.bytes) for viewer in viewers]
        await asyncio.sleep(seconds)
        passed_s = time.monotonic() - began
        after, commands = (gateway.cpu_s(), redis.cpu_s()), fleet.redis_counters()
        events = sum(viewer.events for viewer in viewers) - sum(n for n, _ in seen)
        size = sum(viewer.bytes for viewer in viewers) - sum(n for _, n in seen)
    return DashboardCost(
        streams=streams,
        gateway_core=(after[0] - before[0]) / passed_s,
        redis_core=(after[1] - before[1]) / passed_s,
        commands_per_s=(commands["commands"] - commands_before["commands"]) / passed_s,
        overview_commands_per_s=sum(
            commands.get(name, 0.0) - commands_before.get(name, 0.0) for name in _OF_THE_OVERVIEW
        )
        / passed_s,
        events_per_stream_s=events / passed_s / streams if streams else 0.0,
        bytes_per_event=size / events if events else 0.0,
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


def _median(costs: Sequence[DashboardCost]) -> DashboardCost:
    def of(name: str) -> float:
        return median(float(getattr(cost, name)) for cost in costs)

    return DashboardCost(
        streams=costs[0].streams,
        gateway_core=of("gateway_core"),
        redis_core=of("redis_core"),
        commands_per_s=of("commands_per_s"),
        overview_commands_per_s=of("overview_commands_per_s"),
        events_per_stream_s=of("events_per_stream_s"),
        bytes_per_event=of("bytes_per_event"),
    )


def table(costs: Sequence[DashboardCost]) -> Table:
    """One row for each number of streams."""
    head = [
        "dashboards",
        "gateway\n% of a core",
        "Redis\n% of a core",
        "Redis\ncommands/s",
        "of the\noverview",
    ]
    head += ["events/s\nof each", "bytes\nper event"]
    rows = [
        [
            str(cost.streams),
            f"{cost.gateway_core:.1%}",
            f"{cost.redis_core:.1%}",
            f"{cost.commands_per_s:.0f}",
            f"{cost.overview_commands_per_s:.1f}",
            f"{cost.events_per_stream_s:.2f}",
            f"{cost.bytes_per_event:.0f}",
        ]
        for cost in costs
    ]
    return Table("Open dashboards", head, rows)


def evaluate(costs: Sequence[DashboardCost]) -> tuple[bool, str]:
    """Whether the limits are kept, and a sentence. `costs`: of 0, 1 and many streams."""
    none, one, many = costs
    share = many.gateway_core - none.gateway_core
    factor = many.overview_commands_per_s / (one.overview_commands_per_s or 1.0)
    good = share <= MAX_CORE_SHARE and factor <= MAX_COMMANDS_FACTOR
    return good, (
        f"{many.streams} dashboards cost {share:.1%} of a gateway's core (limit "
        f"{MAX_CORE_SHARE:.0%}), and {factor:.2f} times the Redis commands of one (limit "
        f"{MAX_COMMANDS_FACTOR:.2f})"
    )

"""What a line of a batch costs beside a short request, and how busy a batch keeps an engine."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median

from load_tests.batches.batch_fleet import BatchFleet, write_lines
from load_tests.bench.points import POINTS
from load_tests.bench.rounds import run_point
from load_tests.harness.session import print_progress
from load_tests.systems.engine import PACED, EngineTiming
from tests.harness.fleet import Stack
from tests.harness.waiting import wait_for

_REQUESTS = POINTS["req64"]
_SLOTS = 256
_BUSY_SLOTS = 128
_BUSY_TOKENS = 64
_BUSY = EngineTiming(step_ms=32, step_us_per_seq=0, max_num_seqs=_BUSY_SLOTS)
_STEPS, _TOKENS, _GENERATED = "flotilla_engine_steps_total", "flotilla_tokens_total", "completion"
_DEADLINE_S = 600.0


@dataclass(frozen=True, slots=True)
class LineCost:
    """One round."""

    lines_s: float
    """Lines per second, from the creation of the batch to its end."""
    line_us: Mapping[str, float]
    """CPU microseconds of a line by process label."""
    request_us: float
    """CPU microseconds of a short request (`req64` of `run`) on the same fleet."""

    @property
    def total_us(self) -> float:
        """CPU microseconds of a line."""
        return sum(self.line_us.values())

    @property
    def ratio(self) -> float:
        """A line beside a short request."""
        return self.total_us / self.request_us


def line_costs(processes: Stack, lines: int, rounds: int) -> list[LineCost]:
    """Lines with answers of one token, and in turn requests over HTTP. Raises ProcessError."""
    timing = EngineTiming(PACED.step_ms, PACED.step_us_per_seq, _SLOTS)
    fleet = BatchFleet(processes, timing)
    fleet.start()
    path = processes.folder / "short.jsonl"
    write_lines(path, lines, tokens=1)
    run_point(fleet, _REQUESTS, 0)  # warm up
    found = []
    for number in range(rounds):
        requests = run_point(fleet, _REQUESTS, number)
        ended = fleet.run(path, _DEADLINE_S)
        cost = LineCost(
            lines / ended.seconds,
            {label: 1e6 * seconds / lines for label, seconds in ended.cpu_s.items()},
            requests.total_us,
        )
        by_process = ", ".join(f"{label} {us:.0f}" for label, us in sorted(cost.line_us.items()))
        print_progress(
            f"{number}: {cost.lines_s:.0f} lines/s, {cost.total_us:.0f} us a line ({by_process}), "
            f"{cost.ratio:.2f} x a short request"
        )
        found.append(cost)
    return found


def busy_share(processes: Stack, rounds: int) -> float:
    """How much of an engine with 128 slots a batch uses, with answers of 64 tokens.

    1: the time that the engine would need if all slots generated in each of its steps of 32 ms;
    from its first step to its last. `rounds`: so many lines for each slot. Raises ProcessError.
    """
    fleet = BatchFleet(processes, _BUSY)
    fleet.start()
    lines, path = rounds * _BUSY_SLOTS, processes.folder / "busy.jsonl"
    write_lines(path, lines, _BUSY_TOKENS)
    batch = fleet.create(path)
    deadline_s = 2 * rounds * _BUSY_TOKENS * _BUSY.step_s(_BUSY_SLOTS) + _DEADLINE_S
    wait_for(lambda: fleet.worker.metric(_STEPS) > 0, "the engine runs", deadline_s=deadline_s)
    began, everything = time.monotonic(), lines * _BUSY_TOKENS
    made = partial(fleet.worker.metric, _TOKENS, kind=_GENERATED)
    wait_for(lambda: made() >= everything, "lines end", deadline_s)
    seconds = time.monotonic() - began
    *_, found = fleet.follow(batch, deadline_s)
    share = rounds * _BUSY_TOKENS * _BUSY.step_s(_BUSY_SLOTS) / seconds
    print_progress(f"{found['request_counts']}, {seconds:.1f} s: {share:.1%} of the engine's time")
    return share


def medians(costs: list[LineCost]) -> tuple[float, float, float]:
    """Of lines per second, of microseconds per line, of the ratio to a short request."""
    return (
        median(cost.lines_s for cost in costs),
        median(cost.total_us for cost in costs),
        median(cost.ratio for cost in costs),
    )

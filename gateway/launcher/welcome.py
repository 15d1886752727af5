"""The text of `flotilla up` while everything starts, and when it serves."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple


class PoolLine(NamedTuple):
    """A pool, for its line of the text."""

    name: str
    served_names: tuple[str, ...]
    workers: tuple[int, int]
    """(Least, most)."""


def how_many(ranges: Iterable[tuple[int, int]]) -> str:
    """The number of all workers together, of pools with (least, most)."""
    numbers = list(ranges)
    least, most = sum(low for low, _ in numbers), sum(high for _, high in numbers)
    return f"{_numbers(least, most)} worker{'s' * (most != 1)}"


def _numbers(least: int, most: int) -> str:
    return f"{least}" if least == most else f"{least} to {most}"


def progress(late: list[str], waited_s: float) -> str:
    """Which processes are not ready yet."""
    workers = [name for name in late if name.startswith("worker-")]
    if workers:
        verb = "is" if len(workers) == 1 else "are"
        return f"{', '.join(workers)} {verb} loading the model, {waited_s:.0f} s"
    return f"waiting for {', '.join(late)}, {waited_s:.0f} s"


def welcome(
    *,
    url: str,
    model: str,
    simulated: bool,
    pools: Sequence[PoolLine],
    logs: Path,
    with_key: bool,
) -> str:
    """The text when everything serves, with an example call of `model`."""
    body = {
        "model": model,
        "stream": True,
        "messages": [{"role": "user", "content": "What is Flotilla?"}],
    }
    header = " -H 'Content-Type: application/json'"
    if with_key:
        header += ' -H "Authorization: Bearer $OPENAI_API_KEY"'
    lines = [
        f"Flotilla serves on {url}",
        "",
        *_pool_lines(model, pools),
        f"logs     {logs}",
        "",
        f"curl -N {url}/v1/chat/completions{header} \\",
        f"  -d {shlex.quote(json.dumps(body))}",
        "",
        "Ctrl-C stops everything.",
    ]
    if simulated:
        lines.insert(3, "engine   SIMULATED: no model runs, every answer is made up")
    return "\n" + "\n".join(f"  {line}".rstrip() for line in lines) + "\n"


def _pool_lines(model: str, pools: Sequence[PoolLine]) -> list[str]:
    def workers(least: int, most: int) -> str:
        return _numbers(least, most) + ", as the load asks" * (least < most)

    if len(pools) == 1:
        return [f"model    {model}", f"workers  {workers(*pools[0].workers)}"]
    width = max(len(pool.name) for pool in pools)
    return [
        f"pool     {pool.name:{width}}  {', '.join(pool.served_names)}; "
        f"workers: {workers(*pool.workers)}"
        for pool in pools
    ]

"""`continuation`: whether real vLLM continues an answer as if nothing had happened, by classes of
requests, and how soon the first new token comes behind a long past.

The demo model in float32, in this process, on a CPU: with fewer digits the logits of a prefill and
of single steps differ by rounding. The classes, the cuts and the comparison are those of
tests/e2e/continuation_classes.py.

Exit status 0: all classes are continued exactly. 1: otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

from load_tests.harness.table import Table
from tests.e2e import test_messages_continued as messages
from tests.e2e.continuation_classes import (
    CHAT,
    CLASSES,
    GREEDY,
    PENALTIES,
    SEEDED,
    STORY,
    STREAM,
    LogRecorder,
    RequestClass,
    answer,
    continue_at_each_cut,
    run,
    structured,
)
from tests.e2e.continuation_classes import tokens as tokens_of
from tests.e2e.responses import test_responses_continued as responses
from tests.e2e.shared_engine import close, started_with_reasoning
from tests.harness.models import DEMO
from tests.harness.settings import Settings
from worker.engines.interface import Engine

HELP = "which classes of requests real vLLM continues exactly, and how fast"
DOCUMENTATION = Path(__file__).parents[1] / "worker" / "engines" / "CONTINUATION.md"
_PAST = 512
_ROW = tuple[str, str, str]
_LONG: dict[str, Any] = {
    "messages": STORY,
    **STREAM,
    "max_tokens": _PAST + 8,
    "min_tokens": _PAST + 8,
}
_TIMED: dict[str, dict[str, Any]] = {
    "greedy": GREEDY,
    "seeded": SEEDED,
    "penalties, seeded": {**PENALTIES, **SEEDED},
    "bad words": {**GREEDY, "bad_words": [" the", "queue is"]},
    "stop string": {**GREEDY, "stop": ["no such text"]},
    "regex": {**SEEDED, **structured(regex="([a-z]{3,9} ){600}"), "max_tokens": _PAST + 8},
    "logprobs": {**GREEDY, "logprobs": True, "top_logprobs": 2},
    "regex with logprobs (replayed)": {
        **SEEDED,
        **structured(regex="([a-z]{3,9} ){600}"),
        "max_tokens": _PAST + 8,
        "logprobs": True,
    },
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument(
        "--write", action="store_true", help=f"write the tables into {DOCUMENTATION.name}"
    )


def main(arguments: argparse.Namespace) -> int:
    """Try all classes and print their table, in Markdown."""
    kind, rows, timed = asyncio.run(_run())
    lines = [
        f"Found with {kind} on a CPU.",
        "",
        *_markdown(("Class of requests", "way", "answers"), rows),
    ]
    print("\n".join(lines))
    print(Table("Until the first new token", ("class", "ms", "times"), timed).text())
    if arguments.write:
        text = DOCUMENTATION.read_text()
        kept = text[: text.index("Found with")]
        DOCUMENTATION.write_text("\n".join([kept + lines[0], *lines[1:], ""]))
    return any(found not in ("exact", "checked") for _, _, found in rows)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [
        f"| {' | '.join(line)} |".replace("| --- ", "|---").replace("--- |", "---|")
        for line in lines
    ]


async def _run() -> tuple[str, list[_ROW], list[_ROW]]:
    from worker.engines.vllm.engine import VllmEngine

    settings = Settings(engine_args="--dtype float32")
    engine = VllmEngine(settings, settings.described.own)
    await engine.start()
    reasoning = await started_with_reasoning()
    try:
        rows = [await _row(reasoning if of.reasons else engine, of) for of in CLASSES]
        rows += [
            await _row_of_events(engine, f"{name}, {kind}", module, {**body, "model": DEMO})
            for name, module in (("messages", messages), ("responses", responses))
            for kind, body in module.BODIES.items()
        ]
        return engine.kind, rows, await _timed(engine)
    finally:
        await close(engine)
        await close(reasoning)


async def _row(engine: Engine, of: RequestClass) -> _ROW:
    _, found = await continue_at_each_cut(engine, of)
    problems = [f"cut {each.cut}: {each.problem}" for each in found if each.problem]
    ways = sorted({how for each in found for how, _ in each.ways})
    return of.name, " or ".join(ways), "; ".join(problems) or ("exact" if of.exact else "checked")


async def _row_of_events(engine: Engine, name: str, module: Any, body: dict[str, Any]) -> _ROW:
    """A class of an endpoint whose streams have events."""
    of = RequestClass(name, module.PATH, body)
    whole, journal = await answer(engine, of, body)
    n, ways, problems = len(journal.log), set(), []
    for k in sorted({1, n // 3, n // 2, n - 1, n} - {0}):
        again, new = await answer(engine, of, body, journal.cut(k))
        ways |= {how for how, _ in new.ways}
        if tokens_of(journal.log[:k] + new.log) != tokens_of(journal.log) or module.joined(
            again.body
        ) != module.joined(whole.body):
            problems.append(f"cut {k}: {new.refused or 'another answer'}")
    return name, " or ".join(sorted(ways)), "; ".join(problems) or "exact"


async def _timed(engine: Any) -> list[_ROW]:
    """The time until the first new token behind a past of `_PAST` tokens, beside those of requests
    without a past: of a short prompt, and of one that has the past's text in it, which takes as
    long to compute."""
    first: dict[str, float] = {}
    for name, fields in _TIMED.items():
        body = {**_LONG, **fields}
        of = RequestClass(name, CHAT, body)
        _, journal = await answer(engine, of, body)
        known = accumulate(len(delta.token_ids) for _, delta in journal.log)
        cut = 1 + sum(tokens < _PAST for tokens in known)
        if not first:
            first["without a past"] = await _first_token(engine, of, None)
            text = "".join(delta.text for _, delta in journal.log[:cut])
            asked = {"messages": [{"role": "user", "content": STORY[0]["content"] + text}]}
            long = replace(of, body={**body, **asked})
            first["without a past, as long a prompt"] = await _first_token(engine, long, None)
        first[name] = await _first_token(engine, of, journal.cut(cut))
    base = first["without a past"]
    return [
        (name, f"{seconds * 1000:.0f}", f"{seconds / base:.1f}") for name, seconds in first.items()
    ]


async def _first_token(engine: Any, of: RequestClass, past: Any) -> float:
    return median([await _one_first_token(engine, of, past) for _ in range(5)])


async def _one_first_token(engine: Any, of: RequestClass, past: Any) -> float:
    await engine._engine.reset_prefix_cache()  # noqa: SLF001
    came: list[float] = []

    class Clock(LogRecorder):
        """Notes when each delta comes."""

        def delta(self, *args: Any) -> None:
            came.append(time.perf_counter())
            super().delta(*args)

    began = time.perf_counter()
    body = {**of.body, "max_tokens": of.body["max_tokens"] if past else 8, "min_tokens": 0}
    await asyncio.create_task(run(engine, of.path, body if not past else of.body, Clock(past)))
    return came[0] - began

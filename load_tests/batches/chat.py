"""Chats beside a batch: the scenario of llm-d-async-rs, on a simulated engine.

32 slots; a batch of 192 lines with answers of 1,500 tokens; 15 bursts of 32 chats with answers of
256 tokens, 6 s apart. Its published figures (H200, TTFT p95): chat alone 0.22 s, with running lines
that are interrupted and continued 0.44 s, without 6.5 s.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from load_tests.batches.batch_fleet import BatchFleet, write_lines
from load_tests.fairness.difference import Call
from load_tests.fairness.player import play
from load_tests.harness.errors import WrongAnswerError
from load_tests.harness.session import print_progress
from load_tests.harness.spread import percentile
from load_tests.systems.engine import EngineTiming
from tests.harness.fleet import Stack
from tests.harness.waiting import wait_for

_SLOTS = 32
_LINES = 192
_LINE_TOKENS = 1500
_BURSTS = 15
_BURST_S = 6.0
_CHAT_TOKENS = 256
_PROMPT_TOKENS = 64
STEP_MS = 10.0
_PREFILL_US = 20.0
"""Of a prompt token: an H200 with a model of 8 billion parameters."""
_CACHE_BLOCKS = 2048
"""Of 512 tokens: all that its KV cache holds. vLLM's default is to keep what it has computed."""
_DEADLINE_S = 900.0
_NO_HAND_BACKS = '{"hand_backs_s": 0}'


@dataclass(frozen=True, slots=True)
class ChatRun:
    """What chats and lines got."""

    name: str
    ttft_p50_s: float
    ttft_p95_s: float
    ttft_p99_s: float
    batch_s: float
    """0: no batch ran."""
    yields: float
    """Lines that were handed back."""
    decoded_again: float
    """Tokens that were generated twice."""


def chat_runs(processes: Stack, *, steady: bool) -> tuple[list[ChatRun], int]:
    """Chats alone, beside a batch, and beside one that does not make room.

    `steady`: chats that take a quarter of the slots, instead of bursts. Also returns how many lines
    have another answer in the second run than in the third. Raises RunError.
    """
    calls = _steady() if steady else _bursts()
    runs, answers = [], []
    for name, settings in (
        ("chat alone", None),
        ("beside a batch", {}),
        ("without making room", {"fair_shares": _NO_HAND_BACKS}),
    ):
        run, found = _run(processes, name, calls, settings)
        print_progress(f"{run}")
        runs.append(run)
        answers.append(found)
    different = sum(answers[2][custom_id] != text for custom_id, text in answers[1].items())
    return runs, different


def _bursts() -> list[Call]:
    return [
        Call("chat", burst * _BURST_S, _PROMPT_TOKENS, _CHAT_TOKENS)
        for burst in range(_BURSTS)
        for _ in range(_SLOTS)
    ]


def _steady() -> list[Call]:
    """One after the other in a quarter of the slots, evenly spread."""
    answer_s = _CHAT_TOKENS * STEP_MS / 1e3
    between_s = answer_s / (_SLOTS / 4)
    count = int(_BURSTS * _BURST_S / between_s)
    return [Call("chat", n * between_s, _PROMPT_TOKENS, _CHAT_TOKENS) for n in range(count)]


def _run(
    processes: Stack, name: str, calls: list[Call], settings: dict[str, Any] | None
) -> tuple[ChatRun, dict[str, str]]:
    timing = EngineTiming(STEP_MS, 0, _SLOTS)
    more: dict[str, Any] = {
        "sim_prefill_us_per_token": _PREFILL_US,
        "sim_cache_blocks": _CACHE_BLOCKS,
        **(settings or {}),
    }
    fleet = BatchFleet(processes, timing, **more)
    fleet.start()
    batch: Any = None
    if settings is not None:
        path: Path = processes.folder / "long.jsonl"
        write_lines(path, _LINES, _LINE_TOKENS)
        batch = fleet.create(path)
        busy = partial(fleet.worker.metric, "flotilla_worker_slots", use="busy")
        wait_for(lambda: busy() >= _SLOTS, "lines run")
    played = asyncio.run(play(calls, fleet.ports, 1.0))
    if problems := [call.problem for call in played if call.problem]:
        raise WrongAnswerError(f"{len(problems)} chats failed: {problems[0]}")
    batch_s, answers = 0.0, dict[str, str]()
    if batch is not None:
        *_, ended = fleet.follow(batch, _DEADLINE_S)
        batch_s = ended["completed_at"] - ended["in_progress_at"]
        answers = fleet.answers(ended)
        if len(answers) != _LINES:
            raise WrongAnswerError(f"{len(answers)} of {_LINES} lines were answered")
    ttft = [call.first_s - call.at_s for call in played]
    run = ChatRun(
        name,
        percentile(ttft, 0.5),
        percentile(ttft, 0.95),
        percentile(ttft, 0.99),
        batch_s,
        fleet.worker.metric("flotilla_jobs_released_total", reason="handed_back"),
        fleet.worker.metric("flotilla_tokens_decoded_again_total"),
    )
    processes.close()
    return run, answers

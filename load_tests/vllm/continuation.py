"""Time until the first new token of a continued answer: by prefill, and by forced replay.

`python -m load_tests.vllm.continuation [tokens of the past]`, with real vLLM and the demo model.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from load_tests.oracle.undisturbed import Recorder
from load_tests.systems.engine import CHAT_PATH
from shared.platform.settings import Settings
from worker.core.asgi import Exchange
from worker.engines.interface import JOURNAL, Generated, Past
from worker.engines.vllm.engine import VllmEngine

ROUNDS = 3
NEW = 8


class PastJournal(Recorder):
    """Notes when the first new token comes."""

    def __init__(self, past: Past | None = None) -> None:
        super().__init__()
        self.deltas: list[Generated] = []
        self.first = 0.0
        self._past = past

    def past(self, call: int) -> Past | None:
        """What is to be continued."""
        return self._past

    def continued(self, how: str, decoded_again: int) -> None:
        """The past is continued."""

    def delta(
        self,
        call: int,
        index: int,
        token_ids: Sequence[int],
        text: str,
        logprobs: Any = None,
        own_text: str | None = None,
    ) -> None:
        """Add tokens."""
        self.first = self.first or time.perf_counter()
        self.deltas.append(Generated(index, token_ids, text, logprobs))


async def answer(engine: VllmEngine, n_tokens: int, journal: PastJournal) -> float:
    """Seconds until the first new token."""
    messages = [{"role": "user", "content": "Tell me a story about a queue."}]
    body = {"messages": messages, "stream": True, "ignore_eos": True, "max_tokens": n_tokens}
    raw = json.dumps({**body, "seed": 1}).encode()
    JOURNAL.set(journal)
    began = time.perf_counter()
    exchange = Exchange(lambda data: None)
    await exchange.run(engine, "POST", CHAT_PATH, raw, headers=((b"x-request-id", b"one"),))
    return journal.first - began


async def main(n_tokens: int) -> None:
    """Print the medians."""
    processor = "worker.engines.vllm.forced_replay:ForcedReplay"
    engine = VllmEngine(Settings(engine_args=f"--logits-processors {processor}"))
    await engine.start()
    from worker.engines.vllm.prefill_resume import PREFILLS

    whole = PastJournal()
    await asyncio.create_task(answer(engine, n_tokens + NEW, whole))
    print(f"{len(whole.deltas)} deltas in the undisturbed answer")
    first: dict[str, list[float]] = {"no past": [], "by prefill": [], "by forced replay": []}
    for _ in range(ROUNDS):
        for way, times in first.items():
            past = None if way == "no past" else Past(whole.deltas[:n_tokens], None)
            if way == "by forced replay":
                PREFILLS.disable("measured without it")
            n = NEW + (n_tokens if past else 0)
            times.append(await asyncio.create_task(answer(engine, n, PastJournal(past))))
            PREFILLS._checked = False  # noqa: SLF001 - enabled again
    for way, times in first.items():
        low, high = min(times), max(times)
        print(f"{way}: {statistics.median(times):.3f} s ({low:.3f} to {high:.3f})", flush=True)
    engine.close()
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 512))

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

from shared.platform.settings import Settings
from worker.engines.interface import JOURNAL, Generated, Past
from worker.engines.prompt_context import Context
from worker.engines.vllm.engine import VllmEngine

ROUNDS = 3
NEW = 8
PATH = "/v1/chat/completions"


class Journal:
    """Notes when the first new token comes."""

    def __init__(self, past: Past | None = None) -> None:
        self.deltas: list[Generated] = []
        self.first = 0.0
        self._past = past

    def past(self, call: int) -> Past | None:
        """See `Journal.past`."""
        return self._past

    def refuse_past(self, reason: str) -> None:
        """See `Journal.refuse_past`."""
        raise RuntimeError(reason)

    def keep_here(self) -> None:
        """See `Journal.keep_here`."""

    def continued(self, how: str, decoded_again: int) -> None:
        """See `Journal.continued`."""

    def context(self, call: int, context: Context) -> None:
        """See `Journal.context`."""

    def prompt(self, call: int, n_tokens: int, logprobs: Sequence[Any] | None = None) -> None:
        """See `Journal.prompt`."""

    def delta(
        self,
        call: int,
        index: int,
        token_ids: Sequence[int],
        text: str,
        logprobs: Any = None,
        own_text: str | None = None,
    ) -> None:
        """See `Journal.delta`."""
        self.first = self.first or time.perf_counter()
        self.deltas.append(Generated(index, token_ids, text, logprobs))

    def chunk(self, data: bytes) -> None:
        """See `Journal.chunk`."""


async def answer(engine: VllmEngine, n_tokens: int, journal: Journal) -> float:
    """Seconds until the first new token."""
    messages = [{"role": "user", "content": "Tell me a story about a queue."}]
    body = {"messages": messages, "stream": True, "ignore_eos": True, "max_tokens": n_tokens}
    sent = [{"type": "http.request", "body": json.dumps({**body, "seed": 1}).encode()}]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": PATH,
        "raw_path": PATH.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"x-request-id", b"one")],
    }

    async def receive() -> Any:
        return sent.pop() if sent else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        pass

    JOURNAL.set(journal)
    began = time.perf_counter()
    await engine(scope, receive, send)
    return journal.first - began


async def main(n_tokens: int) -> None:
    """Print the medians."""
    processor = "worker.engines.vllm.forced_replay:ForcedReplay"
    engine = VllmEngine(Settings(engine_args=f"--logits-processors {processor}"))
    await engine.start()
    from worker.engines.vllm.prefill_resume import PREFILLS

    whole = Journal()
    await asyncio.create_task(answer(engine, n_tokens + NEW, whole))
    print(f"{len(whole.deltas)} deltas in the undisturbed answer")
    first: dict[str, list[float]] = {"no past": [], "by prefill": [], "by forced replay": []}
    for _ in range(ROUNDS):
        for way, times in first.items():
            past = None if way == "no past" else Past(whole.deltas[:n_tokens], None)
            if way == "by forced replay":
                PREFILLS.disable("measured without it")
            n = NEW + (n_tokens if past else 0)
            times.append(await asyncio.create_task(answer(engine, n, Journal(past))))
            PREFILLS._checked = False  # noqa: SLF001 - enabled again
    for way, times in first.items():
        low, high = min(times), max(times)
        print(f"{way}: {statistics.median(times):.3f} s ({low:.3f} to {high:.3f})", flush=True)
    engine.close()
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 512))

"""The journal: what vLLM generates for a job is noted token by token before it is served.

`JournalledEngine` stands between vLLM's serving layer and its engine. It passes everything through
and notes every delta; an answer that is not streamed is generated in deltas too, and gathered here,
so that it can be seen while it grows.

Where a request's next chunk is known when its tokens come (vllm_stream.py), both go to the journal
at once, past the request's queue (vllm_collector.py) and task.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams

from worker.engines.protocol import JOURNAL, Journal
from worker.engines.vllm.collector import LATEST, Collector
from worker.engines.vllm.stream import TAP, Take

log = logging.getLogger("flotilla.engine")

# vLLM numbers the generations of a completions request, which may have several prompts.
_CALL = re.compile(r"^cmpl-.*-(\d+)$")


class JournalledEngine:
    """An AsyncLLM whose `generate` writes to the `JOURNAL` of the calling context."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._starting = asyncio.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncIterator[RequestOutput]:
        """As AsyncLLM.generate."""
        journal = JOURNAL.get()
        if journal is None:
            async for output in self._engine.generate(
                prompt, sampling_params, request_id, **options
            ):
                yield output
            return
        numbered = _CALL.search(request_id)
        call = int(numbered[1]) if numbered else 0
        journal.prompt(call, _prompt_tokens(prompt))
        whole = sampling_params.output_kind is RequestOutputKind.FINAL_ONLY
        if whole:
            sampling_params = sampling_params.clone()
            sampling_params.output_kind = RequestOutputKind.DELTA
        gathered: RequestOutput | None = None

        def gather(output: RequestOutput) -> None:
            nonlocal gathered
            if gathered is None:
                gathered = output
            else:
                gathered.add(output, aggregate=True)
                gathered.metrics = output.metrics

        def gather_unfinished(output: RequestOutput) -> str | None:
            if output.finished:
                return None
            gather(output)
            return ""

        collector: Collector | None = None
        if call:
            # A call's prompts come all at once: started in one turn of the event loop, a thousand
            # of them keep it for a second, and no other request's tokens leave meanwhile.
            async with self._starting:
                await asyncio.sleep(0)
        outputs = self._engine.generate(prompt, sampling_params, request_id, **options)
        LATEST.set(None)
        try:
            async for output in outputs:
                for part in output.outputs:
                    journal.delta(call, part.index, part.token_ids, part.text)
                collector = collector or LATEST.get()
                tap = partial(_tap, collector, journal, call)
                if whole:
                    gather(output)
                    tap(gather_unfinished)
                else:
                    TAP.set(tap)
                    yield output
        finally:
            # Closing the inner generator aborts the request now, not when it is collected.
            await outputs.aclose()
        if gathered is not None:
            gathered.outputs.sort(key=lambda part: part.index)
            yield gathered


def _tap(collector: Collector | None, journal: Journal, call: int, take: Take) -> None:
    """Have the collector's next outputs taken, up to the first that is not."""
    if collector is None:
        return

    def take_now(output: Any) -> bool:
        if isinstance(output, Exception):
            return False
        try:
            chunk = take(output)
        except Exception:  # it is vLLM's output handler that calls, for all requests
            log.exception("a delta could not be taken at once")
            return False
        if chunk is None:
            return False
        for part in output.outputs:
            journal.delta(call, part.index, part.token_ids, part.text)
        if chunk:
            journal.chunk(chunk.encode())
        return True

    collector.tap = take_now


def _prompt_tokens(prompt: Any) -> int:
    """Tokens of a rendered prompt; 0 where it has none (embeddings)."""
    ids = prompt.get("prompt_token_ids") if isinstance(prompt, dict) else None
    return len(ids or ())

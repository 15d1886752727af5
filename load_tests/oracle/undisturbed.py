"""The answer that a request gets if nothing fails: that of an engine in this process."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from load_tests.clients.sse_parser import SseParser
from load_tests.harness.fleet import VLLM_SETTINGS
from load_tests.oracle.answer import Answer
from load_tests.oracle.request_classes import Mode, Request, RequestClass, make_request
from load_tests.systems.engine import MODEL
from shared.fleet.pool import Pool
from worker.core.edits import TierEdit, requested_tier
from worker.core.run import Exchange
from worker.engines.interface import JOURNAL, Context, Engine, Logprobs, Past
from worker.engines.simulated.engine import SimulatedEngine
from worker.engines.simulated.simulated_settings import SimulatedSettings
from worker.engines.vllm.args import VllmSettings


@dataclass(slots=True)
class Expected:
    """The right answer to a request, and what the job's record and log must hold."""

    answer: Answer
    tokens: Counter[tuple[int, int]]
    """Generated tokens by engine call and choice."""
    texts: dict[int, str]
    """Text by choice, numbered over all calls."""
    prompt_tokens: int
    joined: bool = False
    """The bounds of chunks differ by chance: compare what they hold together."""

    @property
    def completion_tokens(self) -> int:
        """Tokens of all choices."""
        return sum(self.tokens.values())


@dataclass(slots=True)
class _Recorder:
    """The engine's journal for one request (worker.engines.interface.Journal); collects all."""

    answer: list[bytes] = field(default_factory=list)
    tokens: Counter[tuple[int, int]] = field(default_factory=Counter)
    texts: dict[tuple[int, int], str] = field(default_factory=dict)
    prompt_tokens: int = 0

    def past(self, call: int) -> Past | None:
        return None

    def refuse_past(self, reason: str) -> None:
        raise AssertionError(reason)

    def continued(self, how: str, decoded_again: int) -> None:
        raise AssertionError(how)

    def keep_here(self) -> None:
        """Nothing is handed over."""

    def context(self, call: int, context: Context) -> None:
        """Nothing depends on it."""

    def prompt(self, call: int, n_tokens: int, logprobs: Sequence[Any] | None = None) -> None:
        self.prompt_tokens += n_tokens

    def cached(self, n_tokens: int) -> None:
        """It changes no answer."""

    def delta(
        self,
        call: int,
        index: int,
        token_ids: Sequence[int],
        text: str,
        logprobs: Logprobs | None = None,
    ) -> None:
        self.tokens[call, index] += len(token_ids)
        self.texts[call, index] = self.texts.get((call, index), "") + text

    def chunk(self, data: bytes) -> None:
        self.answer.append(data)


class Undisturbed:
    """Computes right answers. `start` it in an event loop, `close` it at the end."""

    def __init__(self, *, vllm: bool = False) -> None:
        """`vllm`: ask real vLLM instead of the simulated engine."""
        self._engine = _vllm() if vllm else _simulated()
        self._joined = vllm

    async def start(self) -> None:
        """Start the engine."""
        await self._engine.start()

    def close(self) -> None:
        """Stop the engine."""
        self._engine.close()

    async def served(self, classes: Sequence[RequestClass]) -> tuple[RequestClass, ...]:
        """Return the classes that the engine does not refuse."""
        found = []
        for each in classes:
            request = make_request(each, random.Random(0), "probe", Mode.CALL)
            if (await self.expected(request)).answer.status == 200:
                found.append(each)
        return tuple(found)

    async def expected(self, request: Request) -> Expected:
        """Compute the right answer."""
        raw = json.dumps(request.body).encode()
        recorder = _Recorder()
        token = JOURNAL.set(recorder)
        exchange = Exchange(recorder.chunk)
        try:
            await exchange.run(self._engine, "POST", request.path, raw)
        finally:
            JOURNAL.reset(token)
        answer = Answer(status=exchange.status)
        tier = requested_tier(raw)
        if exchange.streaming:
            data = b"".join(recorder.answer)
            if tier:
                data = data.replace(b"}\n\n", b',"service_tier":"%b"}\n\n' % tier.encode())
            for event in SseParser().feed(data):
                answer.add_chunk(event.data)
        else:
            body = bytes(exchange.body)
            answer.set_body(exchange.status, TierEdit(tier).whole(body) if tier else body)
        choices = sorted(recorder.texts)
        return Expected(
            answer,
            recorder.tokens,
            {index: recorder.texts[choice] for index, choice in enumerate(choices)},
            recorder.prompt_tokens,
            joined=self._joined,
        )


def _simulated() -> Engine:
    return SimulatedEngine(
        SimulatedSettings(sim_step_ms=0, sim_step_us_per_seq=0, sim_prefill_us_per_token=0)
    )


def _vllm() -> Engine:
    # Here because importing vLLM takes ten seconds, which other runs save.
    from worker.engines.vllm.engine import VllmEngine

    pool = Pool(served_names=(MODEL,), engine_args=VLLM_SETTINGS["engine_args"])
    return VllmEngine(VllmSettings(), pool)

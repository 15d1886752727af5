"""The journal around vLLM's own engine client, with stubs of that client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from shared.job.log import START, Delta, read_entry, read_journal
from shared.store.queue import Step
from tests.unit.worker.bench import make_job
from worker.core.output import Output
from worker.engines.interface import JOURNAL, Journal

pytestmark = pytest.mark.vllm


async def test_prompts_of_one_call_start_in_different_turns_of_the_loop() -> None:
    """The tokens of other requests are sent between them."""
    from vllm.sampling_params import SamplingParams

    from worker.engines.vllm.journal import JournalledEngine

    turn, turns = 0, []

    class Starts:
        model_config = SimpleNamespace(logits_processors=[])

        async def generate(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
            turns.append(turn)
            return
            yield

    async def count() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    class Nothing(Journal):
        def prompt(self, call: int, n_tokens: int) -> None:
            pass

    async def start(engine: JournalledEngine, number: int) -> None:
        JOURNAL.set(Nothing())
        params = SamplingParams(max_tokens=1)
        async for _ in engine.generate({}, params, f"cmpl-x-{number}"):
            raise AssertionError

    counting = asyncio.create_task(count())
    engine = JournalledEngine(Starts())
    await asyncio.gather(*(start(engine, number) for number in range(50)))
    counting.cancel()
    assert len(set(turns)) >= 49


@pytest.mark.parametrize("n", [1, 2])
async def test_the_journal_of_a_whole_answer_keeps_each_delta_as_it_came(n: int) -> None:
    """The deltas are gathered into one answer before the buffer packs what it was given."""
    from vllm.outputs import CompletionOutput, RequestOutput
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    from worker.engines.vllm.journal import JournalledEngine

    texts = ["a", "b", "c"]

    class StubEngine:
        model_config = SimpleNamespace(logits_processors=[])

        async def generate(self, *_: Any, **__: Any) -> AsyncIterator[RequestOutput]:
            for number, text in enumerate(texts):
                for index in range(n):
                    last = number == len(texts) - 1
                    reason = "length" if last else None
                    part = CompletionOutput(index, text, [number], None, None, reason)
                    yield RequestOutput("x", "", [1], None, [part], last and index == n - 1)

    buffer = Output(make_job(stream=False), Mock())
    JOURNAL.set(buffer)
    params = SamplingParams(n=n, max_tokens=3, output_kind=RequestOutputKind.FINAL_ONLY)
    whole = [o async for o in JournalledEngine(StubEngine()).generate({}, params, "cmpl-x-0")]
    assert [part.token_ids for part in whole[0].outputs] == [[0, 1, 2]] * n
    step = Step()
    buffer.take(step, b"")
    (_, _, packed) = step.entries
    entry = read_entry(START, packed)
    deltas = [record for record in read_journal(entry.journal) if isinstance(record, Delta)]
    assert [(d.choice, d.token_ids, d.text) for d in deltas] == [
        (index, (number,), text) for number, text in enumerate(texts) for index in range(n)
    ]


async def test_the_prompts_of_an_embedding_are_journalled_before_it_is_computed() -> None:
    """So the job counts as one that has reached the engine, and takes one slot, not two."""
    from vllm.pooling_params import PoolingParams

    from worker.engines.vllm.journal import JournalledEngine

    output = SimpleNamespace(finished=True, num_cached_tokens=0)
    prompts: list[tuple[int, int]] = []
    seen_by_engine: list[list[tuple[int, int]]] = []

    class Recorder(Journal):
        def prompt(self, call: int, n_tokens: int) -> None:
            prompts.append((call, n_tokens))

    class StubEngine:
        async def encode(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
            seen_by_engine.append(list(prompts))
            yield output

    engine = JournalledEngine(StubEngine())
    JOURNAL.set(Recorder())
    for number, token_ids in enumerate([[1, 2, 3], [4]]):
        outputs = engine.encode(
            prompt={"prompt_token_ids": token_ids},
            pooling_params=PoolingParams(task="embed"),
            request_id=f"embd-job_000-{number}",
        )
        assert [each async for each in outputs] == [output]
    assert seen_by_engine == [[(0, 3)], [(0, 3), (1, 1)]]

"""The journal in vLLM's own engine client, over a stub of that client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
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


@pytest.fixture
def make_engine(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    """A JournalledLLM whose engine is a stub."""
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.executor import Executor

    from worker.engines.vllm.checksums import Contexts
    from worker.engines.vllm.continuation import Ways
    from worker.engines.vllm.journal import JournalledLLM

    model = SimpleNamespace(
        runner_type="generate", logits_processors=None, logprobs_mode="raw_logprobs"
    )
    config = SimpleNamespace(
        model_config=model,
        speculative_config=None,
        scheduler_config=SimpleNamespace(max_num_seqs=8),
    )

    def start(self: Any, config: Any, *_: Any, **__: Any) -> None:
        self.model_config = config.model_config
        self.engine_core = SimpleNamespace(get_output_async=None)

    def make(stub: Any) -> Any:
        monkeypatch.setattr(AsyncLLM, "__init__", start)
        monkeypatch.setattr(AsyncLLM, "__del__", lambda self: None)
        monkeypatch.setattr(Executor, "get_class", lambda config: None)
        for name in ("generate", "encode"):
            if method := getattr(stub, name, None):
                monkeypatch.setattr(AsyncLLM, name, lambda _, *a, m=method, **o: m(*a, **o))
        ways = Ways(config, on_cpu=False)
        ways.close()
        return JournalledLLM(
            config,
            ways,
            None,
            Contexts(1),
            cache_per_tenant=True,
            max_logprobs_at_once=1 << 30,
            hides_texts=False,
            stat_loggers=[],
            log_stats=False,
        )

    return make


async def test_prompts_of_one_call_start_in_different_turns_of_the_loop(
    make_engine: Callable[[Any], Any],
) -> None:
    """The tokens of other requests are sent between them."""
    from vllm.sampling_params import SamplingParams

    turn, turns = 0, []

    class Starts:
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

        def past(self, call: int) -> None:
            return None

    async def start(engine: Any, number: int) -> None:
        JOURNAL.set(Nothing())
        params = SamplingParams(max_tokens=1)
        async for _ in engine.generate({}, params, f"cmpl-x-{number}"):
            raise AssertionError

    counting = asyncio.create_task(count())
    engine = make_engine(Starts())
    await asyncio.gather(*(start(engine, number) for number in range(50)))
    counting.cancel()
    assert len(set(turns)) >= 49


@pytest.mark.parametrize("n", [1, 2])
async def test_the_journal_of_a_whole_answer_keeps_each_delta_as_it_came(
    n: int, make_engine: Callable[[Any], Any]
) -> None:
    """The deltas are gathered into one answer before the buffer packs what it was given."""
    from vllm.outputs import CompletionOutput, RequestOutput
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    texts = ["a", "b", "c"]

    class StubEngine:
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
    whole = [o async for o in make_engine(StubEngine()).generate({}, params, "cmpl-x-0")]
    assert [part.token_ids for part in whole[0].outputs] == [[0, 1, 2]] * n
    step = Step()
    buffer.take(step, b"")
    (_, _, packed) = step.entries
    entry = read_entry(START, packed)
    deltas = [record for record in read_journal(entry.journal) if isinstance(record, Delta)]
    assert [(d.choice, d.token_ids, d.text) for d in deltas] == [
        (index, (number,), text) for number, text in enumerate(texts) for index in range(n)
    ]


async def test_the_prompts_of_an_embedding_are_journalled_before_it_is_computed(
    make_engine: Callable[[Any], Any],
) -> None:
    """So the job counts as one that has reached the engine, and takes one slot, not two."""
    from vllm.pooling_params import PoolingParams

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

    engine = make_engine(StubEngine())
    JOURNAL.set(Recorder())
    for number, token_ids in enumerate([[1, 2, 3], [4]]):
        outputs = engine.encode(
            prompt={"prompt_token_ids": token_ids},
            pooling_params=PoolingParams(task="embed"),
            request_id=f"embd-job_000-{number}",
        )
        assert [each async for each in outputs] == [output]
    assert seen_by_engine == [[(0, 3)], [(0, 3), (1, 1)]]


# --- room for requests of several sequences ---


@pytest.mark.parametrize(("slots", "size"), [(1, 1), (2, 1), (8, 7), (64, 56), (256, 224)])
async def test_some_slots_are_kept_for_others(slots: int, size: int) -> None:
    from worker.engines.vllm.journal import Room

    assert Room(slots).size == size


async def test_first_come_first_served() -> None:
    from worker.engines.vllm.journal import Room

    room, entered = Room(8), list[str]()
    leave = {name: asyncio.Event() for name in ("a", "large", "small")}

    async def enter(name: str, sequences: int) -> None:
        async with room.of(sequences):
            entered.append(name)
            await leave[name].wait()

    tasks = [asyncio.create_task(enter(*each)) for each in (("a", 5), ("large", 100), ("small", 1))]
    for name in leave:
        await asyncio.sleep(0.01)
        assert entered[-1] == name
        leave[name].set()
    await asyncio.gather(*tasks)
    assert entered == ["a", "large", "small"]


async def test_a_cancelled_request_leaves_the_line() -> None:
    from worker.engines.vllm.journal import Room

    room = Room(8)

    async def enter(sequences: int) -> None:
        async with room.of(sequences):
            await asyncio.sleep(0)

    async with room.of(5):
        first, second = asyncio.create_task(enter(7)), asyncio.create_task(enter(2))
        await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.wait_for(second, 5)
    await asyncio.wait_for(enter(7), 5)


async def test_room_is_given_back_however_a_call_ends(make_engine: Callable[[Any], Any]) -> None:
    async def generate(prompt: str) -> AsyncGenerator[int, None]:
        yield 1
        if prompt == "fails":
            raise ValueError("x")
        yield 2

    engine = make_engine(None)
    for prompt in ("a", "b", "fails", "fails", "c"):
        calls = engine._in_room(4, generate(prompt))
        assert await asyncio.wait_for(anext(calls), 5) == 1
        if prompt == "fails":
            with pytest.raises(ValueError):
                await anext(calls)
        elif prompt == "b":
            await calls.aclose()
        else:
            assert [each async for each in calls] == [2]
    async with asyncio.timeout(5), engine._room.of(7):
        pass

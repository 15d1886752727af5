"""The simulated engine: its answers, its batch, and its prefix cache.

What it shares with vLLM is in `tests/e2e/test_engine_conformance.py`; its faults are used by
`tests/faults`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from shared.platform.settings import SettingsError
from tests.harness.asgi_client import Recorder, Reply, call
from tests.harness.settings import Settings
from worker.engines.interface import JOURNAL
from worker.engines.simulated import EOS, TOKENS
from worker.engines.simulated.api import TextRequest
from worker.engines.simulated.engine import Batch, Generation, Sequence, SimulatedEngine

BLOCK = 4 * 512

Start = Callable[..., Awaitable[SimulatedEngine]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts engines with steps of a millisecond, or with the given settings."""
    started = []

    async def start_one(**settings: Any) -> SimulatedEngine:
        fast = {"sim_step_ms": 1, "sim_step_us_per_seq": 0, "sim_prefill_us_per_token": 0}
        values = Settings(engine="simulated", **{**fast, **settings})
        engine = SimulatedEngine(values, values.described.own)
        await engine.start()
        started.append(engine)
        return engine

    yield start_one
    for engine in started:
        engine.close()


async def ask(
    engine: SimulatedEngine, text: str = "hello", journal: Recorder | None = None, **fields: Any
) -> Reply:
    JOURNAL.set(journal)
    body = {"messages": [{"role": "user", "content": text}], **fields}
    return await call(engine, "POST", "/v1/chat/completions", body)


def content(reply: Reply) -> str:
    text = reply.json()["choices"][0]["message"]["content"]
    assert isinstance(text, str)
    return text


async def test_the_same_prompt_has_the_same_answer(start: Start) -> None:
    one, other = await start(), await start()
    assert content(await ask(one, "a")) == content(await ask(other, "a"))
    assert content(await ask(one, "a")) != content(await ask(one, "b"))
    assert content(await ask(one, "a", seed=1)) != content(await ask(one, "a", seed=2))
    assert content(await ask(one, "a", seed=1)) == content(await ask(other, "a", seed=1))


async def test_an_answer_is_labelled_and_ends_by_itself(start: Start) -> None:
    engine = await start()
    lengths = set()
    for number in range(20):
        journal = Recorder()
        reply = await ask(engine, f"prompt {number}", journal)
        assert content(reply).startswith("[simulated] ")
        assert reply.json()["choices"][0]["finish_reason"] == "stop"
        token_ids = journal.token_ids[0, 0]
        assert token_ids[-1] == EOS
        assert "".join(TOKENS[token] for token in token_ids) == content(reply)
        assert 8 <= len(token_ids) <= 64
        lengths.add(len(token_ids))
    assert len(lengths) > 5


async def test_the_kv_cache_bounds_the_batch(start: Start) -> None:
    engine = await start(sim_kv_tokens=100, sim_max_model_len=100)
    usages: list[float] = []
    engine.on_step = lambda: usages.append(engine.load().kv_usage)
    text = "a" * 4 * 20  # 21 or 22 tokens with the role: four of them fit, with little to spare
    replies = await asyncio.gather(
        *(ask(engine, text, max_tokens=40, ignore_eos=True, seed=i) for i in range(4))
    )
    assert all(reply.json()["usage"]["completion_tokens"] == 40 for reply in replies)
    assert 0.9 < max(usages) <= 1
    assert len(usages) > 40
    assert engine.load().kv_usage == 0
    alone = await ask(engine, text, max_tokens=40, ignore_eos=True, seed=3)
    assert content(alone) == content(replies[3])  # being preempted changes no answer


@pytest.mark.parametrize("faults", ["explode=1", "die_on_signal=SIGHUP", "slow_start_s=soon"])
def test_unknown_faults_are_refused(faults: str) -> None:
    with pytest.raises(SettingsError, match=faults.partition("=")[0]):
        SimulatedEngine(Settings(sim_faults=faults))


# --- prefill ---


def sequence(text: str) -> Sequence:
    request = TextRequest(prompt=text, max_tokens=3, ignore_eos=True, stream=True)
    return Generation(request, 1 << 20, None).sequences[0]


def take_step(of: Batch) -> int:
    """The tokens that it prefilled."""
    tokens = of.admit()
    of.step()
    return tokens


def test_leading_blocks_that_are_cached_are_not_prefilled() -> None:
    of = Batch(Settings(sim_cache_blocks=4))
    a, b = "a" * BLOCK, "b" * BLOCK
    prompts = {a + b + "c" * 40: 0, a + b + "d" * 80: 2, b + b: 0, a + "e" * 4: 1}
    for text, held in prompts.items():  # of the third prompt, b is behind another block
        one = sequence(text)
        of.add([one])
        assert take_step(of) == one.prompt.n_tokens - 512 * held
        assert one.generation.cached == {0: 512 * held}


def test_a_step_prefills_so_many_tokens_in_order_of_admission() -> None:
    of = Batch(Settings(sim_prefill_tokens_per_step=100))
    short, long, last = sequence("a" * 4 * 60), sequence("b" * 4 * 130), sequence("c" * 4 * 20)
    of.add([short, long, last])
    generated = []
    for expected in (100, 100, 10, 0):
        assert take_step(of) == expected
        generated.append((short.n_generated, long.n_generated, last.n_generated))
    assert generated == [(1, 0, 0), (2, 1, 0), (3, 2, 1), (3, 3, 2)]
    assert of.kv_used == last.n_tokens

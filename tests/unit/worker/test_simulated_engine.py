"""The simulated engine: its answers, its batch and its faults.

What it shares with vLLM is in `tests/e2e/test_engine_conformance.py`.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from shared.platform.settings import SettingsError
from tests.harness.asgi_client import Recorder, Reply, call
from tests.harness.settings import Settings
from worker.engines.interface import JOURNAL
from worker.engines.simulated import EOS, TOKENS
from worker.engines.simulated.engine import SimulatedEngine

CHAT = "/v1/chat/completions"

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
    engine: SimulatedEngine,
    text: str = "hello",
    journal: Recorder | None = None,
    **fields: Any,
) -> Reply:
    JOURNAL.set(journal)
    body = {"messages": [{"role": "user", "content": text}], **fields}
    return await call(engine, "POST", CHAT, body)


def content(reply: Reply) -> str:
    text = reply.json()["choices"][0]["message"]["content"]
    assert isinstance(text, str)
    return text


class Steps:
    """Counts an engine's steps."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self._count = 0
        engine.on_step = self._on_step

    def _on_step(self) -> None:
        self._count += 1

    def __len__(self) -> int:
        return self._count


# --- answers ---


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
        assert reply.json()["usage"]["completion_tokens"] == len(token_ids)
        lengths.add(len(token_ids))
    assert len(lengths) > 5


# --- the batch ---


async def test_the_kv_cache_bounds_the_batch(start: Start) -> None:
    engine = await start(sim_kv_tokens=100, sim_max_model_len=100)
    steps = Steps(engine)
    usages = []
    count = engine.on_step

    def note() -> None:
        count()
        usages.append(engine.load().kv_usage)

    engine.on_step = note
    text = "a" * 4 * 20  # 21 or 22 tokens with the role: four of them fit, with little to spare
    replies = await asyncio.gather(
        *(ask(engine, text, max_tokens=40, ignore_eos=True, seed=i) for i in range(4))
    )
    assert all(reply.json()["usage"]["completion_tokens"] == 40 for reply in replies)
    assert max(usages) <= 1
    assert max(usages) > 0.9
    assert len(steps) > 40
    assert engine.load().kv_usage == 0
    alone = await ask(engine, text, max_tokens=40, ignore_eos=True, seed=3)
    assert content(alone) == content(replies[3])  # being preempted changes no answer


# --- faults ---


@pytest.mark.parametrize(
    ("faults", "named"),
    [
        ("explode=1", "explode"),
        ("die_after_steps", "die_after_steps"),
        ("die_after_steps=x", "die_after_steps"),
        ("die_after_steps=0", "die_after_steps"),
        ("hang_after_steps=-1", "hang_after_steps"),
        ("slow_start_s=soon", "slow_start_s"),
        ("slow_start_s=nan", "slow_start_s"),
        ("kill_on_prompt=", "kill_on_prompt"),
        ("kill_after_tokens=2", "kill_on_prompt"),
        ("slow_start_s=1,slow_start_s=2", "given twice"),
    ],
)
def test_wrong_faults(faults: str, named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        SimulatedEngine(Settings(sim_faults=faults))


@pytest.mark.parametrize(("faults", "n_tokens"), [("", 0), (",kill_after_tokens=4", 4)])
def test_kill_on_prompt(faults: str, n_tokens: int) -> None:
    script = f"""
        import asyncio
        from worker.engines.simulated.simulated_settings import SimulatedSettings
        from tests.harness.asgi_client import call
        from worker.engines.simulated.engine import SimulatedEngine

        async def main():
            settings = SimulatedSettings(sim_step_ms=1, sim_faults="kill_on_prompt=poison{faults}")
            engine = SimulatedEngine(settings)
            await engine.start()
            harmless = {{"prompt": "x", "max_tokens": 20, "ignore_eos": True}}
            assert (await call(engine, "POST", "/v1/completions", harmless)).status == 200
            body = {{**harmless, "prompt": "some poison here", "stream": True}}
            show = lambda chunk: print(chunk.decode(), end="", flush=True)
            await call(engine, "POST", "/v1/completions", body, on_chunk=show)

        asyncio.run(main())
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    assert ran.stdout.count("data: ") == n_tokens

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
from worker.core.asgi import is_error
from worker.engines.interface import JOURNAL, Load
from worker.engines.simulated.engine import SimulatedEngine
from worker.engines.simulated.generation import EOS, TOKENS

CHAT = "/v1/chat/completions"
DEADLINE_S = 10.0

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


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - there is no signal for what is awaited here
            await asyncio.sleep(0.001)


async def ask(
    engine: SimulatedEngine,
    text: str = "hello",
    journal: Recorder | None = None,
    disconnect: asyncio.Event | None = None,
    **fields: Any,
) -> Reply:
    JOURNAL.set(journal)
    body = {"messages": [{"role": "user", "content": text}], **fields}
    return await call(engine, "POST", CHAT, body, disconnect=disconnect)


def content(reply: Reply) -> str:
    text = reply.json()["choices"][0]["message"]["content"]
    assert isinstance(text, str)
    return text


class Steps:
    """Counts an engine's steps and notes the batch's size after each."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self.unfinished: list[int] = []
        self._engine = engine
        engine.on_step = self._on_step

    def _on_step(self) -> None:
        self.unfinished.append(self._engine.load().unfinished)

    def __len__(self) -> int:
        return len(self.unfinished)


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


async def test_length_limits(start: Start) -> None:
    engine = await start(sim_max_model_len=200)
    reply = await ask(engine, max_tokens=5)
    assert reply.json()["choices"][0]["finish_reason"] == "length"
    assert reply.json()["usage"]["completion_tokens"] == 5
    reply = await ask(engine, max_tokens=100, ignore_eos=True)
    assert reply.json()["usage"]["completion_tokens"] == 100
    reply = await ask(engine, ignore_eos=True)
    assert reply.json()["usage"]["total_tokens"] == 200
    reply = await ask(engine, max_tokens=100, min_tokens=70)
    assert reply.json()["usage"]["completion_tokens"] == 71
    assert reply.json()["choices"][0]["finish_reason"] == "stop"


async def test_a_token_of_a_prompt_is_four_bytes(start: Start) -> None:
    engine = await start()
    for text, n_tokens in (("a" * 40, 10), ("a", 1)):
        reply = await call(engine, "POST", "/v1/completions", {"prompt": text, "max_tokens": 1})
        assert reply.json()["usage"]["prompt_tokens"] == n_tokens


async def test_the_stop_string_may_span_tokens(start: Start) -> None:
    engine = await start()
    whole = content(await ask(engine, ignore_eos=True, max_tokens=20))
    at = whole.index(" ", 20)
    stop = whole[at - 2 : at + 3]
    journal = Recorder()
    reply = await ask(engine, "hello", journal, stop=["never", stop], max_tokens=20, stream=True)
    events = reply.events()
    text = "".join(event["choices"][0]["delta"]["content"] for event in events)
    assert text == whole[: whole.index(stop)] == journal.texts[0, 0]
    assert events[-1]["choices"][0]["stop_reason"] == stop


async def test_a_chunk_is_the_same_with_and_without_its_template(start: Start) -> None:
    engine = await start(served_model_name='na"me\u00e9')
    plain = await ask(engine, stream=True)
    options = {"include_usage": True, "continuous_usage_stats": True}
    slow = await ask(engine, stream=True, stream_options=options)
    for fast_event, slow_event in zip(plain.events()[1:-1], slow.events()[1:-2], strict=True):
        del slow_event["usage"]
        for event in (fast_event, slow_event):
            del event["id"], event["created"]
        assert fast_event == slow_event
        assert fast_event["model"] == 'na"me\u00e9'


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"echo": True}, "echo"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**9}, "max_tokens"),
        ({"messages": "x", "n": "many"}, "messages, n"),
        ({"messages": []}, "no prompt"),
        ({"stop": [""]}, "stop"),
        ({"messages": [{"content": "long " * 9999}]}, "12500 tokens"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_can_not_be_used_is_one_error(
    start: Start, fields: dict[str, Any], named: str, stream: bool
) -> None:
    engine = await start()
    reply = await ask(engine, **{"stream": stream, **fields})
    error = reply.json()["error"]
    assert (reply.status, error["type"], error["code"]) == (400, "BadRequestError", 400)
    assert error["message"].startswith("The simulated engine can't use this request: ")
    assert named in error["message"]
    assert engine.load().unfinished == 0


@pytest.mark.parametrize("raw", [b"", b"{nope", b"[]", b'"\xff"', b"[" * 100_000])
async def test_a_body_that_is_no_json_object_is_refused(start: Start, raw: bytes) -> None:
    assert (await call(await start(), "POST", CHAT, raw)).status == 400


async def test_an_invocation_is_a_chat_or_a_completion(start: Start) -> None:
    engine = await start()
    for body, kind in (
        ({"messages": [{"role": "user", "content": "x"}]}, "chat.completion"),
        ({"prompt": "x"}, "text_completion"),
    ):
        reply = await call(engine, "POST", "/invocations", {**body, "max_tokens": 2})
        assert reply.json()["object"] == kind


async def test_the_choices_of_a_batch_are_those_of_its_conversations(start: Start) -> None:
    engine = await start()
    talks = [[{"role": "user", "content": text}] for text in ("one", "two")]
    fields = {"max_tokens": 4, "seed": 1, "stream": True}  # it does not stream
    batch = await call(engine, "POST", f"{CHAT}/batch", {"messages": talks, **fields})
    alone = [content(await ask(engine, text, max_tokens=4, seed=1)) for text in ("one", "two")]
    assert [choice["message"]["content"] for choice in batch.json()["choices"]] == alone


async def test_names(start: Start) -> None:
    for settings, name in (
        ({}, "simulated"),
        ({"model": "m"}, "m"),
        ({"model": "m", "served_model_name": "s"}, "s"),
    ):
        engine = await start(**settings)
        models = await call(engine, "GET", "/v1/models")
        assert models.json()["data"][0]["id"] == name
        assert (await ask(engine)).json()["model"] == name
        assert (await ask(engine, model="other")).status == 404


async def test_aliases(start: Start) -> None:
    engine = await start(model="m", served_model_name="a, b")
    models = (await call(engine, "GET", "/v1/models")).json()["data"]
    assert [model["id"] for model in models] == ["a", "b"]
    assert (await ask(engine, model="b")).json()["model"] == "a", "the first one, as in vLLM"
    assert (await ask(engine, model="m")).status == 404


# --- the batch ---


async def test_a_batch_shares_its_steps(start: Start) -> None:
    engine = await start()
    steps = Steps(engine)
    replies = await asyncio.gather(
        *(ask(engine, str(i), max_tokens=20, ignore_eos=True) for i in range(8))
    )
    assert all(reply.status == 200 for reply in replies)
    assert 20 <= len(steps) <= 22


async def test_no_more_sequences_than_slots(start: Start) -> None:
    engine = await start(sim_max_num_seqs=2)
    steps = Steps(engine)
    await asyncio.gather(*(ask(engine, str(i), max_tokens=10, ignore_eos=True) for i in range(6)))
    assert 30 <= len(steps) <= 32
    assert engine.load().unfinished == 0
    assert engine.capacity.max_num_seqs == 2


async def test_first_come_first_served(start: Start) -> None:
    engine = await start(sim_max_num_seqs=1)
    ended = []

    async def one(number: int) -> None:
        await ask(engine, str(number), max_tokens=3)
        ended.append(number)

    await asyncio.gather(*(one(number) for number in range(5)))
    assert ended == [0, 1, 2, 3, 4]


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


async def test_step_time(start: Start) -> None:
    engine = await start(sim_step_ms=2, sim_step_us_per_seq=1000, sim_prefill_us_per_token=1000)
    loop = asyncio.get_running_loop()

    async def timed(n: int, text: str = "a" * 4) -> float:
        started = loop.time()
        await asyncio.gather(
            *(ask(engine, text, max_tokens=10, ignore_eos=True, seed=i) for i in range(n))
        )
        return loop.time() - started

    # 10 steps of 2 ms, or of 8 ms for 8 sequences, and a millisecond per prompt token: never less.
    assert await timed(1) >= 0.020
    assert await timed(8) >= 0.080
    assert await timed(1, "a" * 400) >= 0.120


async def test_on_step_is_called_once_and_after_the_consumers(start: Start) -> None:
    engine = await start()
    loop = asyncio.get_running_loop()
    sent: list[bytes] = []
    flushed: list[int] = []

    def flush_soon() -> None:
        loop.call_soon(lambda: flushed.append(len(sent)))

    engine.on_step = flush_soon
    body = {"prompt": "x", "max_tokens": 10, "ignore_eos": True, "stream": True}
    await asyncio.gather(
        *(call(engine, "POST", "/v1/completions", body, on_chunk=sent.append) for _ in range(5))
    )
    # Ten steps of five chunks; the ends of the streams follow the last.
    assert flushed == [5 * step for step in range(1, 10)] + [5 * 10 + 5]


async def test_the_journal_has_every_step(start: Start) -> None:
    engine = await start()
    journal = Recorder()
    reply = await ask(engine, "x", journal, n=3, max_tokens=6, ignore_eos=True)
    usage = reply.json()["usage"]
    assert journal.deltas == 18 == usage["completion_tokens"]
    assert journal.prompts == {0: usage["prompt_tokens"]}
    assert [choice["message"]["content"] for choice in reply.json()["choices"]] == [
        journal.texts[0, index] for index in range(3)
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_disconnect_frees_the_batch(start: Start, stream: bool) -> None:
    engine = await start(sim_max_num_seqs=2)
    journals = [Recorder() for _ in range(3)]
    gone = [asyncio.Event() for _ in range(3)]
    calls = [
        asyncio.create_task(
            ask(engine, "x", journal, event, max_tokens=5000, ignore_eos=True, stream=stream)
        )
        for journal, event in zip(journals, gone, strict=True)
    ]
    await until(lambda: journals[0].deltas > 2 and engine.load().unfinished == 3)
    assert journals[2].deltas == 0  # it waits
    gone[2].set()
    reply = await calls[2]
    assert engine.load().unfinished == 2
    assert (reply.status, reply.body) == (200, b"" if stream else b"null")
    used = engine.load().kv_usage
    gone[0].set()
    await calls[0]
    assert engine.load().unfinished == 1
    assert engine.load().kv_usage < used
    gone[1].set()
    await calls[1]
    assert engine.load() == Load(unfinished=0, kv_usage=0.0)
    assert content(await ask(engine)).startswith("[simulated]")


async def test_an_idle_engine_takes_no_steps(start: Start) -> None:
    engine = await start(sim_step_ms=0)
    steps = Steps(engine)
    await ask(engine, max_tokens=3)
    assert len(steps) == 3
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(steps) == 3


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


def test_one_sequence_must_fit_into_the_kv_cache() -> None:
    with pytest.raises(SettingsError, match="FLOTILLA_SIM_KV_TOKENS"):
        SimulatedEngine(Settings(sim_kv_tokens=100, sim_max_model_len=101))


async def test_death(start: Start) -> None:
    engine = await start(sim_faults="die_after_steps=5")
    journal = Recorder()
    stream, whole, waiting = await asyncio.gather(
        ask(engine, "x", journal, max_tokens=50, ignore_eos=True, stream=True),
        ask(engine, "y", max_tokens=50, ignore_eos=True),
        ask(engine, "z", max_tokens=5, ignore_eos=True),
    )
    *events, error = stream.data()
    assert stream.status == 200
    assert is_error(f"data: {error}".encode())
    assert "InternalServerError" in error
    assert len(events) == 1 + 5  # the role, then five steps
    assert journal.deltas == 5
    assert whole.status == 500
    assert whole.json()["error"]["type"] == "InternalServerError"
    assert waiting.status == 200  # it had ended with the last step
    assert engine.dead
    assert engine.load().unfinished == 0
    for fields in ({}, {"stream": True}):
        late = await ask(engine, **fields)
        assert late.status == 500
    assert (await call(engine, "GET", "/health")).status == 503


async def test_a_failing_on_step_kills_the_engine(start: Start) -> None:
    engine = await start()

    def fail() -> None:
        raise RuntimeError("a bug")

    engine.on_step = fail
    reply = await ask(engine, max_tokens=5)
    assert reply.status == 500
    assert engine.dead


async def test_close_ends_running_requests(start: Start) -> None:
    engine = await start(sim_faults="hang_after_steps=1")
    running = asyncio.create_task(ask(engine, max_tokens=50))
    await until(lambda: engine.load().unfinished == 1)
    engine.close()
    assert (await running).status == 500
    assert engine.dead


async def test_hang(start: Start) -> None:
    engine = await start(sim_faults="hang_after_steps=3")
    steps = Steps(engine)
    journal = Recorder()
    gone = asyncio.Event()
    running = asyncio.create_task(
        ask(engine, "x", journal, gone, max_tokens=50, ignore_eos=True, stream=True)
    )
    await until(lambda: journal.deltas == 3)
    done, _ = await asyncio.wait([running], timeout=0.05)
    assert not done
    assert len(steps) == 3
    assert not engine.dead
    gone.set()
    await running
    assert engine.load().unfinished == 0


async def test_slow_start() -> None:
    engine = SimulatedEngine(Settings(sim_faults="slow_start_s=0.05"))
    loop = asyncio.get_running_loop()
    started = loop.time()
    await engine.start()
    assert loop.time() - started >= 0.05
    engine.close()


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

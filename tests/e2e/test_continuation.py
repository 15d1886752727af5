"""Real vLLM continues an answer after any token, as if nothing had happened.

Each class of requests runs undisturbed once. Then its journal is cut after the first, a random, the
middle, the last but one and the last delta, and the engine gets the request again with that past:
by prefill and by forced replay. What comes out is compared with the undisturbed answer, and the
table of classes in worker/engines/CONTINUATION.md with the classes that are tried here.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client import REGISTRY

from tests.e2e.continuation_classes import (
    CHAT,
    CLASSES,
    COMPLETIONS,
    GREEDY,
    LONG,
    STORY,
    STREAM,
    LogRecorder,
    RequestClass,
    chunks_by_choice,
    run,
    same,
    summary,
)
from tests.e2e.shared_engine import close
from tests.harness.asgi_client import Reply
from tests.harness.settings import Settings
from worker.engines.interface import Engine

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

WAYS = ("prefill", "forced")
HOW = {"prefill": "prefill", "forced": "replay"}
DOCUMENTATION = Path(__file__).parents[2] / "worker" / "engines" / "CONTINUATION.md"


@pytest.fixture
def use_way(vllm_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Chooses between the two ways."""
    from worker.engines.vllm import prefill_resume

    assert prefill_resume.usable(), "this release of vLLM is not known to it"

    def choose(way: str) -> None:
        monkeypatch.setattr(prefill_resume, "usable", lambda: way == "prefill")

    return choose


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def reasoning_engine(vllm_engine: Engine) -> AsyncIterator[Engine]:
    """A second engine, with a reasoning parser for the demo model; the first one's metrics stay.

    That model does not reason: its text up to the first comma is called reasoning.
    """
    from vllm.reasoning import ReasoningParserManager
    from vllm.reasoning.deepseek_r1_reasoning_parser import DeepSeekR1ReasoningParser

    from worker.engines.vllm.engine import VllmEngine

    class Parser(DeepSeekR1ReasoningParser):  # type: ignore[misc]
        start_token, end_token = "<tool_call>", ","

    ReasoningParserManager.register_module("demo", module=Parser)
    processor = "worker.engines.vllm.forced_replay:ForcedReplay"
    arguments = f"--dtype float32 --logits-processors {processor} --reasoning-parser demo"
    settings = Settings(engine_args=arguments)
    engine = VllmEngine(settings, settings.described.own)
    # vLLM takes the metrics of an earlier engine out of the registry, and other tests read these.
    before = set(REGISTRY._collector_to_names)
    await engine.start()
    after = set(REGISTRY._collector_to_names)
    for collector in after - before:
        REGISTRY.unregister(collector)
    for collector in before - after:
        REGISTRY.register(collector)
    yield engine
    await close(engine)


async def in_own_context(coroutine: Any) -> Any:
    """As a worker runs a job: in a task of its own."""
    return await asyncio.create_task(coroutine)


async def answer(
    engine: Engine, of: RequestClass, body: Any, past: Any = None
) -> tuple[Reply, LogRecorder]:
    journal = LogRecorder(past)
    reply = await in_own_context(run(engine, of.path, body, journal))
    assert reply.status == 200, reply.body
    return reply, journal


async def undisturbed(engine: Engine, of: RequestClass) -> tuple[Any, Reply, LogRecorder]:
    """The request's body, its answer and its journal."""
    body = dict(of.body)
    if of.seam_stop:
        _, free = await answer(engine, of, body)
        texts = [delta.text for _, delta in free.log]
        seam = len("".join(texts[: len(texts) // 2]))
        body["stop"] = "".join(texts)[seam - 2 : seam + 2]
    return body, *await answer(engine, of, body)


def cuts(journal: LogRecorder, of: RequestClass) -> list[int]:
    n = len(journal.log)
    some = {1, random.Random(of.name).randint(1, n), n // 2, n - 1, n}
    if "UTF-8" in of.name:
        texts = [delta.text for _, delta in journal.log]
        assert "" in texts[:-1], texts
        some |= {k + 1 for k, text in enumerate(texts) if not text}
    return sorted(some - {0})


def tokens(log: list[Any]) -> dict[Any, list[int]]:
    found: dict[Any, list[int]] = {}
    for call, delta in log:
        found.setdefault((call, delta.choice), []).extend(delta.token_ids)
    return found


def chunks_known(journal: LogRecorder, reply: Reply, k: int) -> dict[Any, int]:
    """How many chunks of each choice a client had when the `k`-th delta was the last."""
    n = journal.chunks_before[k] if k < len(journal.log) else journal.chunks
    cut = Reply(200, reply.headers, [f"data: {data}\n\n".encode() for data in reply.data()[:n]])
    return {index: len(chunks) for index, chunks in chunks_by_choice(cut).items()} if n else {}


def check_chunks(journal: LogRecorder, whole: Reply, again: Reply, k: int, *, exact: bool) -> None:
    """The chunks that a client has are made again, one by one the same."""
    before, after = chunks_by_choice(whole), chunks_by_choice(again)
    for index, n in chunks_known(journal, whole, k).items():
        if exact or index is not None:
            assert after[index][:n] == before[index][:n]


@pytest.mark.parametrize("of", [of for of in CLASSES if not of.reasons], ids=lambda of: of.name)
async def test_it_continues(of: RequestClass, vllm_engine: Engine, use_way: Any) -> None:
    await check_both_ways(vllm_engine, of, use_way)


@pytest.mark.parametrize("of", [of for of in CLASSES if of.reasons], ids=lambda of: of.name)
async def test_it_continues_in_and_after_the_reasoning(
    of: RequestClass, reasoning_engine: Engine, use_way: Any
) -> None:
    whole = summary(await check_both_ways(reasoning_engine, of, use_way))
    message = whole.get(0) or whole["choices"][0]["message"]
    assert message["reasoning"]
    assert message["content"]


async def check_both_ways(engine: Engine, of: RequestClass, use_way: Any) -> Reply:
    """Continue it at each cut by each way; returns the undisturbed answer."""
    body, whole, journal = await undisturbed(engine, of)
    n = len(journal.log)
    ks = cuts(journal, of)
    for way in WAYS:
        use_way(way)
        # All at once: continued requests share the batch, with each other and with new ones.
        calls = [answer(engine, of, body, journal.cut(k)) for k in ks]
        *answers, _ = await asyncio.gather(*calls, answer(engine, of, body))
        for k, (again, new) in zip(ks, answers, strict=True):
            assert not new.refused
            assert new.prompts == journal.prompts
            past = sum(map(len, tokens(journal.log[:k]).values()))
            assert sum(n for _, n in new.ways) == (past if way == "forced" else 0)
            assert {how for how, _ in new.ways} == {HOW[way]}
            if of.body.get("stream"):
                check_chunks(journal, whole, again, k, exact=of.exact)
            if of.exact:
                assert tokens(journal.log[:k] + new.log) == tokens(journal.log)
                assert same(summary(again), summary(whole))
            else:
                check_by_hand(of, again, sum(map(len, tokens(journal.log[:k] + new.log).values())))
            if k == n:
                assert not new.log, "all tokens were there"
    return whole


def check_by_hand(of: RequestClass, reply: Reply, n_tokens: int) -> None:
    (choice,) = (value for index, value in summary(reply).items() if index == 0)
    assert re.fullmatch(of.matches or "(?s).+", choice["content"])
    assert choice["finish_reason"] in ("stop", "length")
    (usage,) = (chunk["usage"] for chunk in chunks_by_choice(reply)[None] if chunk != "[DONE]")
    assert usage["completion_tokens"] == n_tokens
    if choice["finish_reason"] == "length":
        assert n_tokens == of.body["max_tokens"]


async def test_the_table_in_the_documentation_has_the_classes_that_are_tried(
    vllm_engine: Engine,
) -> None:
    cell = {True: "exact", False: "checked"}
    table = [
        f"Found with {vllm_engine.kind} on a CPU.",
        "",
        "| Class of requests | by prefill | by forced replay |",
        "|---|---|---|",
        *(f"| {of.name} | {cell[of.exact]} | {cell[of.exact]} |" for of in CLASSES),
    ]
    assert DOCUMENTATION.read_text().endswith("\n".join(["", *table, ""]))


PLAIN = RequestClass("plain", CHAT, {"messages": STORY, **LONG, **GREEDY, **STREAM})


@pytest.mark.parametrize("way", WAYS)
async def test_prefill_takes_one_step_and_forced_replay_one_for_each_token(
    way: str, vllm_engine: Engine, use_way: Any
) -> None:
    _, whole, journal = await undisturbed(vllm_engine, PLAIN)
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    vllm_engine.on_step = count
    use_way(way)
    again, _ = await answer(vllm_engine, PLAIN, PLAIN.body, journal.cut(13))
    vllm_engine.on_step = lambda: None
    assert summary(again) == summary(whole)
    assert (steps < 8) if way == "prefill" else (steps >= 16)


async def test_new_chunks_of_a_continued_stream_are_made_from_the_template(
    vllm_engine: Engine, use_way: Any
) -> None:
    _, _, journal = await undisturbed(vllm_engine, PLAIN)
    for way in WAYS:
        use_way(way)
        _, new = await answer(vllm_engine, PLAIN, PLAIN.body, journal.cut(4))
        # Outputs of steps may come together, so their number is not known.
        assert new.passed_on > new.deltas / 2


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_clients_can_not_force_tokens(path: str, vllm_engine: Engine) -> None:
    from worker.engines.vllm.resume_args import FORCED, PREFILL

    of = RequestClass("", path, {**LONG, **GREEDY, "messages": STORY, "prompt": "Once"})
    for key, value in ((FORCED, [300, 301, 302]), (PREFILL, "x"), (PREFILL, [1])):
        body = {**of.body, "vllm_xargs": {key: value, "other": 1}}
        assert summary((await answer(vllm_engine, of, body))[0]) == summary(
            (await answer(vllm_engine, of, of.body))[0]
        )


async def test_a_past_that_is_not_the_requests_is_refused(
    vllm_engine: Engine, use_way: Any
) -> None:
    _, _, journal = await undisturbed(vllm_engine, PLAIN)
    for way in WAYS:
        use_way(way)
        past = journal.cut(5)
        past[0].deltas[2] = past[0].deltas[2]._replace(text="another text")
        new = LogRecorder(past)
        await in_own_context(run(vllm_engine, CHAT, PLAIN.body, new))
        assert new.refused == "the engine did not repeat what the answer has so far."
        assert not new.log


async def test_without_either_way_a_past_is_refused(
    vllm_engine: Engine, use_way: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from worker.engines.vllm import forced_replay

    _, _, journal = await undisturbed(vllm_engine, PLAIN)
    use_way("none")
    monkeypatch.setattr(forced_replay, "installed", lambda config: False)
    new = LogRecorder(journal.cut(5))
    await in_own_context(run(vllm_engine, CHAT, PLAIN.body, new))
    assert new.refused == "this engine takes no custom logits processors."


async def test_a_beam_search_is_not_journaled_and_begins_again(vllm_engine: Engine) -> None:
    body = {"messages": STORY, "max_tokens": 6, "use_beam_search": True, "n": 2, **GREEDY}
    of = RequestClass("", CHAT, body)
    reply, journal = await answer(vllm_engine, of, body)
    assert len(reply.json()["choices"]) == 2
    assert not journal.log


async def test_the_scores_of_items_are_continued(vllm_engine: Engine, use_way: Any) -> None:
    items = ["one", "two words", "three more words"]
    body = {"query": "How many?", "items": items, "label_token_ids": [300, 301, 302]}
    of = RequestClass("", "/generative_scoring", body)
    whole, journal = await answer(vllm_engine, of, body)
    assert sorted(call for call, _ in journal.log) == [0, 1, 2]
    for way in WAYS:
        use_way(way)
        for k in (1, 2, 3):
            again, new = await answer(vllm_engine, of, body, journal.cut(k))
            assert same(summary(again), summary(whole))
            assert len(new.log) == 3 - k


async def test_a_continued_request_can_be_aborted(vllm_engine: Engine, use_way: Any) -> None:
    body = {"messages": STORY, **STREAM, "max_tokens": 2000, "ignore_eos": True, "n": 2}
    of = RequestClass("", CHAT, body)
    _, journal = await answer(vllm_engine, of, {**body, "max_tokens": 12})
    for way in WAYS:
        use_way(way)
        new = LogRecorder(journal.cut(10))
        leave = asyncio.Event()
        task = asyncio.create_task(run(vllm_engine, CHAT, body, new, leave))
        await _until(lambda new=new: len(new.log) > 3)  # type: ignore[misc]
        leave.set()
        await task
        await _until(lambda: vllm_engine.load().unfinished == 0)


async def _until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - an engine has no signal for what is awaited here
            await asyncio.sleep(0.005)


def configuration(**changes: Any) -> Any:
    values = {"speculative_config": None, "use_v2_model_runner": False, "runner": "generate"}
    values |= changes
    model = SimpleNamespace(runner_type=values.pop("runner"), logits_processors=None)
    return SimpleNamespace(model_config=model, **values)


@pytest.mark.parametrize(
    ("changes", "processor"),
    [
        ({}, "ForcedReplay"),
        ({"use_v2_model_runner": True}, "ForcedReplayV2"),
        ({"speculative_config": object()}, None),
        ({"runner": "pooling"}, None),
    ],
)
async def test_the_logits_processor_is_the_model_runners(
    changes: Any, processor: str | None
) -> None:
    from worker.engines.vllm import forced_replay

    config = configuration(**changes)
    assert forced_replay.install(config) is (processor is not None)
    expected = [f"worker.engines.vllm.forced_replay:{processor}"] if processor else None
    assert config.model_config.logits_processors == expected
    assert forced_replay.installed(config.model_config) is (processor is not None)


@pytest.mark.parametrize(
    ("processors", "prefills", "chosen"),
    [(None, False, "0"), (None, True, None), (object(), False, None)],
)
async def test_model_runner_v1_is_chosen_where_v2_can_not_continue(
    monkeypatch: pytest.MonkeyPatch, processors: object, prefills: bool, chosen: str | None
) -> None:
    from worker.engines.vllm import forced_replay

    monkeypatch.setattr(forced_replay, "RunnerV2LogitsProcessor", processors)
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")  # so that it is restored afterwards
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER")
    forced_replay.choose_model_runner(prefills=prefills)
    assert os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == chosen


async def test_forced_tokens_in_model_runner_v2() -> None:
    import numpy as np
    import torch

    from worker.engines.vllm.forced_replay import ForcedReplayV2
    from worker.engines.vllm.resume_args import FORCED

    lengths = SimpleNamespace(np=np.array([0, 3, 3, 3]))
    processor = ForcedReplayV2(None, SimpleNamespace(prompt_len=lengths))
    assert processor.add_request(2, SimpleNamespace(extra_args={FORCED: [5, 6]}))
    assert not processor.add_request(1, SimpleNamespace(extra_args=None))
    for seen, token in ((3, 5), (4, 6), (5, None)):
        logits = torch.arange(16.0).reshape(2, 8)
        context = SimpleNamespace(
            idx_mapping_np=np.array([1, 2]), seq_lens_upper_bound_np=np.array([3, seen])
        )
        after = processor.apply(logits.clone(), context)
        assert after[0].tolist() == logits[0].tolist()
        assert after[1].argmax() == (7 if token is None else token)
    assert not processor.add_request(2, SimpleNamespace(extra_args={}))


async def test_spawned_processes_install_the_patches_only_where_their_worker_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from worker.engines.vllm import prefill_resume

    installed = []
    monkeypatch.setattr(prefill_resume, "install", lambda: installed.append(True))
    monkeypatch.setenv(prefill_resume.SWITCH, "off")
    prefill_resume.install_in_engine()
    assert not installed
    monkeypatch.delenv(prefill_resume.SWITCH)
    prefill_resume.install_in_engine()
    assert installed


async def test_the_entry_point_exists() -> None:
    import tomllib

    from worker.engines.vllm import prefill_resume

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    target = project["entry-points"]["vllm.general_plugins"]["flotilla_prefill_resume"]
    assert target == f"{prefill_resume.__name__}:{prefill_resume.install_in_engine.__name__}"

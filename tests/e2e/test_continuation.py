"""Real vLLM continues an answer after any token, as if nothing had happened: each class of requests
in continuation_classes.py, by prefill and by forced replay.

The table of classes in worker/engines/CONTINUATION.md is compared with the classes that are tried.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from tests.e2e.continuation_classes import (
    CHAT,
    CLASSES,
    COMPLETIONS,
    GREEDY,
    LONG,
    PENALTIES,
    SEEDED,
    STORY,
    STREAM,
    LogRecorder,
    RequestClass,
    answer,
    continue_at_each_cut,
    run,
    same,
    structured,
    summary,
    undisturbed,
)
from tests.e2e.shared_engine import close, started_with_reasoning
from tests.harness.asgi_client import Reply
from worker.engines.interface import Engine

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

DOCUMENTATION = Path(__file__).parents[2] / "worker" / "engines" / "CONTINUATION.md"
UseWay = Callable[[str], None]


@pytest.fixture
def use_way(monkeypatch: pytest.MonkeyPatch) -> UseWay:
    """Chooses forced replay for all classes, or leaves the choice to the engine."""
    from worker.engines.vllm.continuation import Ways

    chosen = Ways.is_replayed

    def choose(way: str) -> None:
        def is_replayed(*asked: Any) -> bool:
            return chosen(*asked) or way == "replay"

        monkeypatch.setattr(Ways, "is_replayed", is_replayed)

    return choose


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def reasoning_engine(vllm_engine: Engine) -> AsyncIterator[Engine]:
    """A second engine, with a reasoning parser for the demo model."""
    engine = await started_with_reasoning()
    yield engine
    await close(engine)


@pytest.mark.parametrize("way", ["prefill", "replay"])
@pytest.mark.parametrize("of", [of for of in CLASSES if not of.reasons], ids=lambda of: of.name)
async def test_it_continues(
    of: RequestClass, way: str, vllm_engine: Engine, use_way: UseWay
) -> None:
    use_way(way)
    await check(vllm_engine, of, way)


@pytest.mark.parametrize("way", ["prefill", "replay"])
@pytest.mark.parametrize("of", [of for of in CLASSES if of.reasons], ids=lambda of: of.name)
async def test_it_continues_in_and_after_the_reasoning(
    of: RequestClass, way: str, reasoning_engine: Engine, use_way: UseWay
) -> None:
    use_way(way)
    whole = summary(await check(reasoning_engine, of, way))
    message = whole.get(0) or whole["choices"][0]["message"]
    assert message["reasoning"]
    assert message["content"]


async def check(engine: Engine, of: RequestClass, way: str) -> Reply:
    """Continue it at each cut; returns the undisturbed answer."""
    whole, found = await continue_at_each_cut(engine, of)
    for each in found:
        assert not each.problem, each
        if way == "replay":
            assert sum(n for _, n in each.ways) == each.past
        elif not {"logprobs", "echo"} & of.body.keys():  # logprobs behind a part of a character
            assert {how for how, _ in each.ways} == {"prefill"}
            assert sum(n for _, n in each.ways) == 0
    return whole


async def test_the_table_in_the_documentation_has_the_classes_that_are_tried() -> None:
    text = DOCUMENTATION.read_text()
    rows = re.findall(r"^\| (.+?) \| [\w ]+ \| (exact|checked) \|$", text, re.MULTILINE)
    assert rows[: len(CLASSES)] == [(of.name, "exact" if of.exact else "checked") for of in CLASSES]


LEFT = (
    RequestClass(
        "grammar with logprobs",
        CHAT,
        {"messages": STORY, **STREAM, **SEEDED, **structured(regex="([a-z]{3} ){6}")}
        | {"logprobs": True, "top_logprobs": 2},
    ),
    RequestClass(
        "repetition_detection",
        CHAT,
        {"messages": STORY, **STREAM, **LONG, **GREEDY, "logit_bias": {"300": 100}}
        | {"repetition_detection": {"max_pattern_size": 2, "min_count": 6}},
    ),
)


@pytest.mark.parametrize("of", LEFT, ids=lambda of: of.name)
async def test_what_a_prefill_can_not_continue_is_replayed(
    of: RequestClass, vllm_engine: Engine
) -> None:
    _, found = await continue_at_each_cut(vllm_engine, of)
    for each in found:
        assert not each.problem, each
        assert each.ways == [("replay", each.past)]


@pytest.mark.parametrize(
    "of",
    [of for of in (*CLASSES, *LEFT) if of.exact and not of.reasons],
    ids=lambda of: of.name,
)
async def test_it_continues_where_the_log_has_no_texts(
    of: RequestClass, vllm_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a pool with a middleware."""
    body, whole, _ = await undisturbed(vllm_engine, of)
    of = replace(of, body=body, seam_stop=False)
    monkeypatch.setattr(vllm_engine._engine, "_hides_texts", True)
    _, hidden, journal = await undisturbed(vllm_engine, of)
    assert same(summary(hidden), summary(whole))
    for _, delta in journal.log:
        assert not delta.text
        assert not any(text for each in delta.logprobs or () for *_, text in each)
    _, found = await continue_at_each_cut(vllm_engine, of)
    assert not any(each.problem for each in found), found


async def test_a_release_without_a_part_of_vllm_replays_what_needs_it(
    vllm_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_engine._ways, "_missing", {"grammar": "vllm.v1.gone:Manager"})
    (regex,) = (of for of in CLASSES if of.name == "regex")
    (plain,) = (of for of in CLASSES if of.name == "greedy, streamed")
    for of, way in ((regex, "replay"), (plain, "prefill")):
        _, found = await continue_at_each_cut(vllm_engine, of)
        for each in found:
            assert not each.problem, each
            assert {how for how, _ in each.ways} == {way}


async def test_a_processor_that_fails_ends_its_own_request_only(vllm_engine: Any) -> None:
    """The past is not one of this grammar."""
    _, _, journal = await undisturbed(vllm_engine, PLAIN)
    body = {**PLAIN.body, **structured(regex="[0-9]{20}"), "max_tokens": 40}
    new = LogRecorder(journal.cut(5))
    beside = asyncio.create_task(answer(vllm_engine, PLAIN, PLAIN.body))
    await asyncio.create_task(run(vllm_engine, CHAT, body, new))
    assert "the grammar does not accept" in new.refused
    assert not new.log
    await beside
    assert not vllm_engine.dead
    await answer(vllm_engine, PLAIN, PLAIN.body)


@pytest.mark.parametrize("seeded", [False, True])
async def test_prompts_that_are_computed_in_parts(vllm_engine: Any, seeded: bool) -> None:
    """Several long prompts together are more than a step may compute; vLLM's own generators end a
    CPU's engine then."""
    body = {**PLAIN.body, **(SEEDED if seeded else {})}
    story = " ".join(f"{number} boats wait in a queue." for number in range(150))
    of = RequestClass("", CHAT, {**body, "messages": [{"role": "user", "content": story}]})
    _, whole, journal = await undisturbed(vllm_engine, of)
    pasts = [None, *map(journal.cut, (1, 7, 13)), None, None]
    answers = await asyncio.gather(*(answer(vllm_engine, of, of.body, past) for past in pasts))
    for again, _ in answers:
        assert same(summary(again), summary(whole))


PLAIN = RequestClass("plain", CHAT, {"messages": STORY, **LONG, **GREEDY, **STREAM})


@pytest.mark.parametrize("way", ["prefill", "replay"])
async def test_prefill_takes_one_step_and_forced_replay_one_for_each_token(
    way: str, vllm_engine: Engine, use_way: UseWay
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


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_clients_can_not_force_tokens(path: str, vllm_engine: Engine) -> None:
    from worker.engines.vllm.processors import KEY

    of = RequestClass("", path, {**LONG, **GREEDY, "messages": STORY, "prompt": "Once"})
    for value in ("x", [300, 301, 302], 1):
        body = {**of.body, "vllm_xargs": {KEY: value, "other": 1}}
        assert summary((await answer(vllm_engine, of, body))[0]) == summary(
            (await answer(vllm_engine, of, of.body))[0]
        )


async def test_a_past_that_is_not_the_requests_is_refused(
    vllm_engine: Engine, use_way: UseWay
) -> None:
    _, _, journal = await undisturbed(vllm_engine, PLAIN)
    for way in ("prefill", "replay"):
        use_way(way)
        past = journal.cut(5)
        past[0].deltas[2] = past[0].deltas[2]._replace(text="another text")
        new = LogRecorder(past)
        await asyncio.create_task(run(vllm_engine, CHAT, PLAIN.body, new))
        assert new.refused == "the engine did not repeat what the answer has so far."
        assert not new.log


async def test_an_engine_without_processors_refuses_what_needs_one(
    vllm_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with speculative decoding."""
    monkeypatch.setattr(vllm_engine._ways, "_takes_processors", False)
    await check(vllm_engine, PLAIN, "prefill")
    of = replace(PLAIN, body={**PLAIN.body, **PENALTIES})
    _, _, journal = await undisturbed(vllm_engine, of)
    assert journal.stays
    new = LogRecorder(journal.cut(5))
    await asyncio.create_task(run(vllm_engine, CHAT, of.body, new))
    assert new.refused == "this engine takes no custom logits processors."


async def test_a_beam_search_is_not_journaled_and_begins_again(vllm_engine: Engine) -> None:
    body = {"messages": STORY, "max_tokens": 6, "use_beam_search": True, "n": 2, **GREEDY}
    of = RequestClass("", CHAT, body)
    reply, journal = await answer(vllm_engine, of, body)
    assert len(reply.json()["choices"]) == 2
    assert not journal.log


async def test_the_scores_of_items_are_continued(vllm_engine: Engine, use_way: UseWay) -> None:
    items = ["one", "two words", "three more words"]
    body = {"query": "How many?", "items": items, "label_token_ids": [300, 301, 302]}
    of = RequestClass("", "/generative_scoring", body)
    whole, journal = await answer(vllm_engine, of, body)
    assert sorted(call for call, _ in journal.log) == [0, 1, 2]
    for way in ("prefill", "replay"):
        use_way(way)
        for k in (1, 2, 3):
            again, new = await answer(vllm_engine, of, body, journal.cut(k))
            assert same(summary(again), summary(whole))
            assert len(new.log) == 3 - k


async def test_a_continued_request_can_be_aborted(vllm_engine: Engine, use_way: UseWay) -> None:
    body = {"messages": STORY, **STREAM, "max_tokens": 2000, "ignore_eos": True, "n": 2}
    of = RequestClass("", CHAT, body)
    _, journal = await answer(vllm_engine, of, {**body, "max_tokens": 12})
    for way in ("prefill", "replay"):
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


@pytest.mark.parametrize(
    ("changes", "processors"),
    [
        ({}, ["Continued", "ContinuedSeed"]),
        ({"use_v2_model_runner": True}, ["ContinuedV2"]),
        ({"speculative_config": object()}, []),
        ({"runner": "pooling"}, []),
    ],
)
async def test_the_logits_processors_are_the_model_runners(
    changes: Any, processors: list[str]
) -> None:
    from worker.engines.vllm.continuation import Ways

    values = {"speculative_config": None, "use_v2_model_runner": False, "runner": "generate"}
    values |= changes
    model = SimpleNamespace(
        runner_type=values.pop("runner"), logits_processors=None, logprobs_mode="raw_logprobs"
    )
    Ways(SimpleNamespace(model_config=model, **values), on_cpu=True).close()
    expected = [f"worker.engines.vllm.processors:{name}" for name in processors]
    assert (model.logits_processors or []) == expected


async def test_rows_of_model_runner_v2_are_those_of_v1(vllm_engine: Any) -> None:
    """With made-up tensors: that runner needs a GPU."""
    import numpy as np
    import torch
    from vllm.sampling_params import SamplingParams

    from worker.engines.vllm.processors import KEY, Continued, ContinuedV2

    need = {"past": [7, 8], "penalties": [1.5, 1.0, 1.2], "bad_words": True, "errors": "-"}
    params = SamplingParams(bad_words=["x"], extra_args={KEY: need})
    params._bad_words_token_ids = [[8, 3], [8, 9, 4]]
    forced = SamplingParams(extra_args={KEY: {"forced": [5, 6]}})
    prompt, new = [1, 2, 3, 7, 8], [9, 4, 9]
    ids = torch.zeros(4, 16, dtype=torch.int32)
    ids[2, : len(prompt) + len(new)] = torch.tensor(prompt + new)
    config, device = vllm_engine._engine.vllm_config, torch.device("cpu")
    lengths = SimpleNamespace(np=np.array([0, 3, len(prompt), 3]))
    tokens = SimpleNamespace(gpu=ids)
    states = SimpleNamespace(prompt_len=lengths, all_token_ids=tokens, device=device)
    v1, v2 = Continued(config, device, False), ContinuedV2(config, states)
    apply = v1.new_req_logits_processor(params)
    assert apply is not None
    assert v2.add_request(2, params)
    assert v2.add_request(3, forced)
    assert not v2.add_request(1, SamplingParams())
    for n in range(len(new) + 1):
        rows = torch.randn(3, 16)
        context = SimpleNamespace(
            idx_mapping_np=np.array([1, 2, 3]),
            seq_lens_upper_bound_np=np.array([3, len(prompt) + n, 3 + n]),
        )
        after = v2.apply(rows.clone(), context)
        assert torch.equal(after[0], rows[0])
        assert torch.equal(after[1], apply(prompt, new[:n], rows[1].clone()))
        assert not torch.equal(after[1], rows[1])
        if n < 2:
            assert after[2].argmax() == 5 + n
        else:
            assert torch.equal(after[2], rows[2])
    assert not v2.add_request(2, SamplingParams())

"""What a call depends on: compared between two attempts at a job, and summed up for vLLM."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shared.job.log import (
    START,
    Delta,
    Entry,
    Prompt,
    Transcript,
    context_record,
    read_journal,
)  # fmt: skip
from tests.harness.settings import Settings
from tests.unit.worker.bench import Bench
from worker.core.resume import Continuation, difference
from worker.core.run import Outcome
from worker.engines.interface import SCHEME, Context
from worker.engines.simulated.engine import SimulatedEngine
from worker.engines.vllm.checksums import Contexts, checksum_of_weights

OLD = Context(SCHEME, 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("before", "now", "differs"),
    [
        (OLD, OLD, ""),
        (tuple(OLD), OLD, ""),
        (OLD, OLD._replace(prompt=9), "prompt"),
        (OLD, OLD._replace(media=9), "media"),
        (OLD, OLD._replace(adapter=0), "adapter"),
        (OLD, OLD._replace(model=9), "model"),
        (OLD._replace(scheme=SCHEME + 1), OLD._replace(prompt=9), ""),
        ((SCHEME, 1, 2), OLD, ""),
        ((*OLD, 5), OLD, ""),
    ],
)
def test_the_first_part_that_differs(before: Any, now: Context, differs: str) -> None:
    assert difference(before, now) == differs


def test_a_context_is_a_prompt_that_other_readers_pass_over() -> None:
    journal = [context_record(2, OLD), (2, 7), (2, 0, (5,), "x")]
    records = read_journal(journal)
    assert records == [Prompt(-3, 0, OLD), Prompt(2, 7), Delta(2, 0, (5,), "x")]
    whole = Transcript.empty()
    whole.add(records)
    assert (whole.usage()["prompt_tokens"], whole.choices()) == (
        7,
        [{"index": 0, "text": "x", "tokens": 1}],
    )
    past = Continuation()
    past.add([Entry(START, journal, ())])
    assert past.contexts == {2: OLD}
    assert list(past.pasts) == [2]


# --- runs on the simulated engine ---


async def run(body: dict[str, Any], before: list[Entry]) -> tuple[Bench, Outcome]:
    engine = SimulatedEngine(Settings(sim_step_ms=0))
    await engine.start()
    bench = Bench(engine, before)
    outcome = await bench.run(max_tokens=9, ignore_eos=True, **body).execute()
    await bench.close()
    engine.close()
    return bench, outcome


def asked(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


def without_context(entries: list[Entry]) -> list[Entry]:
    """As a release that does not know contexts writes them."""
    first, *others = entries
    assert isinstance(first.journal, list | tuple)
    kept = [each for each in first.journal if isinstance(each, int) or each[0] >= 0]
    assert len(kept) < len(first.journal)
    return [first._replace(journal=kept), *others]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_job_whose_prompt_is_another_one_begins_anew_or_fails(stream: bool) -> None:
    first, _ = await run(asked("passage one", stream=stream), [])
    bench, outcome = await run(asked("passage two", stream=stream), first.queue.log[:4])
    assert outcome is (Outcome.LOST if stream else Outcome.FINISHED)
    assert bench.queue.restarted == ["job"]
    assert bench.queue.restart_codes == ["context_changed"]
    assert bool(bench.queue.entries) is not stream
    assert bench.metrics.continuations_refused.labels("context")._value.get() == 1


async def test_a_log_without_a_context_is_continued_and_gets_one() -> None:
    first, _ = await run(asked("a passage", stream=True), [])
    before = without_context(first.queue.log[:4])
    bench, outcome = await run(asked("a passage", stream=True), before)
    assert outcome is Outcome.FINISHED
    past = Continuation()
    past.add([*before, *bench.queue.log])
    known = Continuation()
    known.add(first.queue.log)
    assert past.contexts == known.contexts


async def test_a_context_that_is_in_the_log_is_not_written_again() -> None:
    first, _ = await run(asked("a passage", stream=True), [])
    bench, outcome = await run(asked("a passage", stream=True), first.queue.log[:4])
    assert outcome is Outcome.FINISHED
    records = [
        each for entry in bench.queue.log for each in read_journal(entry.journal, entry.items)
    ]
    assert not [each for each in records if isinstance(each, Prompt)]


async def test_what_has_no_token_yet_begins_with_the_new_context() -> None:
    first, _ = await run(asked("passage one", stream=True), [])
    entry = first.queue.log[0]
    assert isinstance(entry.journal, list | tuple)
    prompts = [each for each in entry.journal if not isinstance(each, int) and len(each) < 4]
    before = [entry._replace(journal=prompts, items=())]
    bench, outcome = await run(asked("passage two", stream=True), before)
    assert (outcome, bench.queue.restarted) == (Outcome.FINISHED, [])
    past = Continuation()
    past.add([*before, *bench.queue.log])
    again, outcome = await run(asked("passage two", stream=True), [*before, *bench.queue.log[:3]])
    assert (outcome, again.queue.restarted) == (Outcome.FINISHED, [])


# --- vLLM's prompts and weights ---


def of_tokens(*ids: int, **fields: Any) -> dict[str, Any]:
    return {"type": "token", "prompt_token_ids": list(ids), **fields}


async def test_each_part_of_vllms_prompts_counts() -> None:
    contexts = Contexts(5)
    image, other = {"image": ["a"]}, {"image": ["b"]}
    encoder = {"type": "enc_dec", "encoder_prompt": of_tokens(7), "decoder_prompt": of_tokens(2)}
    prompts = [
        of_tokens(1, 2),
        of_tokens(2, 1),
        of_tokens(),
        of_tokens(1, 2, mm_hashes=image),
        of_tokens(1, 2, mm_hashes=other),
        of_tokens(1, 2, mm_hashes={"audio": ["a"]}),
        encoder,
        {**encoder, "encoder_prompt": of_tokens(3)},
    ]
    found = [await contexts.of(prompt, None) for prompt in prompts]
    assert len(set(found)) == len(prompts)
    assert found == [await contexts.of(prompt, None) for prompt in prompts]
    assert {context.model for context in found} == {5}
    assert await contexts.of(of_tokens(1, 2, cache_salt="x", prompt="text"), None) == found[0]


def weights_in(folder: Path, data: bytes, **config: Any) -> str:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "config.json").write_text(json.dumps({"layers": 2, **config}))
    (folder / "model.safetensors").write_bytes(data)
    return str(folder)


def test_weights_are_told_apart_by_their_content(tmp_path: Path) -> None:
    data = os.urandom(300_000)
    first = checksum_of_weights(weights_in(tmp_path / "a", data))
    assert first == checksum_of_weights(weights_in(tmp_path / "copy", data))
    retrained = bytes(byte ^ 1 for byte in data)
    others = [
        checksum_of_weights(weights_in(tmp_path / "b", retrained)),
        checksum_of_weights(weights_in(tmp_path / "c", data + b"x")),
        checksum_of_weights(weights_in(tmp_path / "d", data, layers=3)),
        checksum_of_weights(str(tmp_path / "a" / "model.safetensors")),
        checksum_of_weights("no-such/model"),
        checksum_of_weights("no-such/model", "v2"),
        checksum_of_weights("s3://bucket/a model"),
    ]
    assert len({first, *others}) == len(others) + 1
    assert 0 not in {first, *others}


def test_what_training_leaves_beside_the_weights_does_not_count(tmp_path: Path) -> None:
    folder = weights_in(tmp_path / "a", b"data")
    before = checksum_of_weights(folder)
    (tmp_path / "a" / "optimizer.pt").write_bytes(b"state")
    (tmp_path / "a" / "README.md").write_text("text")
    assert checksum_of_weights(folder) == before


async def test_an_adapter_that_is_replaced_in_place_is_another_one(tmp_path: Path) -> None:
    contexts, prompt = Contexts(5), of_tokens(1)

    def loaded(name: str = "sql") -> Any:
        return SimpleNamespace(lora_name=name, lora_path=str(tmp_path / "adapter"))

    weights_in(tmp_path / "adapter", b"one")
    first = loaded()
    before = await contexts.of(prompt, first)
    assert before.adapter
    weights_in(tmp_path / "adapter", b"two")
    assert await contexts.of(prompt, first) == before, "the engine has the old one"
    after = await contexts.of(prompt, loaded())
    assert difference(before, after) == "adapter"
    assert difference(await contexts.of(prompt, None), before) == "adapter"
    assert difference(await contexts.of(prompt, loaded("other")), after) == "adapter"

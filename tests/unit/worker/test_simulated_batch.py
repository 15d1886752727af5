"""The simulated engine's batch: its prefix cache, and prefill in parts."""

from __future__ import annotations

import pytest

from tests.harness.asgi_client import call
from tests.harness.settings import Settings
from worker.engines.simulated.api import TextRequest
from worker.engines.simulated.engine import (
    Batch,
    Generation,
    PrefixCache,
    Prompt,
    Sequence,
    SimulatedEngine,
)

BLOCK = 4 * 512


def sequence(text: str, max_tokens: int = 3) -> Sequence:
    request = TextRequest(prompt=text, max_tokens=max_tokens, ignore_eos=True, stream=True)
    return Generation(request, 1 << 20, None).sequences[0]


def batch(prefill_tokens: int = 0, cache: int = 0) -> Batch:
    settings = {"sim_prefill_tokens_per_step": prefill_tokens, "sim_cache_blocks": cache}
    return Batch(Settings(sim_max_num_seqs=8, **settings))


def take_step(of: Batch) -> int:
    """The tokens that it prefilled."""
    tokens = of.admit()
    of.step()
    return tokens


# --- the cache ---


def test_the_leading_blocks_that_are_held_are_counted() -> None:
    cache = PrefixCache(8)
    assert cache.use("abc") == 0
    assert cache.use("abc") == 3
    assert cache.use("abx") == 2
    assert cache.use("ybc") == 0, "only the first ones in a row"


def test_the_end_of_the_oldest_prefix_is_evicted_first() -> None:
    cache = PrefixCache(4)
    cache.use("abc")
    cache.use("xy")
    assert cache.use("abc") == 2, "c was evicted, and y now"
    assert cache.use("xy") == 1


def test_a_block_s_hash_covers_those_before_it() -> None:
    one, other = Prompt("a" * BLOCK + "b" * BLOCK), Prompt("x" * BLOCK + "b" * BLOCK)
    assert not set(one.blocks) & set(other.blocks)
    longer = Prompt(one.text + "short")
    assert longer.blocks[:2] == one.blocks
    assert len(longer.blocks) == 3
    assert Prompt(one.text + "shor").blocks[2] != longer.blocks[2]


# --- the batch with a cache ---


def test_cached_blocks_are_not_prefilled() -> None:
    of, text = batch(cache=10), "a" * BLOCK + "b" * BLOCK
    first, second = sequence(text + "c" * 40), sequence(text + "d" * 80)
    of.add([first])
    assert take_step(of) == 1034
    of.add([second])
    assert take_step(of) == 20
    assert (first.generation.cached, second.generation.cached) == ({0: 0}, {0: 1024})


# --- prefill in parts ---


def test_a_step_prefills_so_many_tokens_in_order_of_admission() -> None:
    of = batch(prefill_tokens=100)
    short, long, last = sequence("a" * 4 * 60), sequence("b" * 4 * 130), sequence("c" * 4 * 20)
    of.add([short, long, last])
    generated = []
    for expected in (100, 100, 10, 0):
        assert take_step(of) == expected
        generated.append((short.n_generated, long.n_generated, last.n_generated))
    assert generated == [(1, 0, 0), (2, 1, 0), (3, 2, 1), (3, 3, 2)]
    assert of.kv_used == last.n_tokens


# --- the answer ---


@pytest.mark.parametrize(("blocks", "details"), [(0, None), (10, {"cached_tokens": 512})])
async def test_the_usage_has_cached_tokens(blocks: int, details: dict[str, int] | None) -> None:
    settings = Settings(
        engine="simulated",
        sim_cache_blocks=blocks,
        sim_step_ms=1,
        sim_step_us_per_seq=0,
        sim_prefill_us_per_token=0,
        sim_prefill_tokens_per_step=300,
    )
    engine = SimulatedEngine(settings, settings.described.own)
    await engine.start()
    for end in ("b", "c" * 40):
        body = {"prompt": "a" * BLOCK + end, "max_tokens": 2, "n": 2}
        usage = (await call(engine, "POST", "/v1/completions", body)).json()["usage"]
    engine.close()
    assert usage["prompt_tokens"] == 522
    assert usage.get("prompt_tokens_details") == details

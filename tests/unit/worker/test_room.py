"""How many jobs a worker claims, what it reports of its tenants, and which jobs it hands over."""

from __future__ import annotations

from typing import Any, cast
from unittest.mock import Mock

import pytest

from shared.job.job import Share
from shared.job.log import DeltaDecoder
from shared.job.rules import DEFAULT, FIRST_TOKENS, FLEX, ShareRules
from shared.job.states import WorkerState
from shared.store.queue import HeldJob
from worker.core import claim as module
from worker.core.claim import (
    Charges,
    Room,
    cheapest,
    homes,
    yieldable,
)
from worker.core.jobs import how_many
from worker.core.output import Output
from worker.core.publish import ShardPublisher
from worker.engines.interface import Capacity, Load


class Engine:
    """An engine whose load the test sets."""

    def __init__(self, kv_tokens: int = 0, max_loras: int = 0) -> None:
        self.capacity = Capacity(
            max_num_seqs=8, max_model_len=1000, kv_tokens=kv_tokens, max_loras=max_loras
        )
        self.dead = False
        self.sequences = 0
        self.kv_usage = 0.0

    def load(self) -> Load:
        """The load now."""
        return Load(self.sequences, self.kv_usage)


class Clock:
    """The time that charges see."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        """Seconds."""
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def make_output(
    number: int = 0, *, tenant: str = "a", lane: str = DEFAULT, weight: float = 1.0,
    charged: float = 0.0, body: bytes = b"", stays: bool = False,
) -> Output:  # fmt: skip
    job = HeldJob(
        id=f"job_000{number:024x}", generation=1, number=1, attempt=1, stream=True,
        endpoint="/v1/completions", body=body, body_bytes=0, watchers="", watched=False,
        waited_s=0.0, tenant=tenant, share=Share(lane, weight, charged),
        stays=stays,
    )  # fmt: skip
    output = Output(job, Mock())
    output.charged = output.charged._replace(at=1000.0)
    return output


def make_room(engine: Engine, watermark: float = 0.9) -> Room:
    return Room(cast(Any, engine), watermark, Charges(ShareRules()))


# --- room ---


@pytest.mark.parametrize(
    ("taken", "kv_usage", "kv_tokens", "free"),
    [
        (0, 0.0, 0, 8),
        (6, 0.0, 0, 2),
        (9, 0.0, 0, 0),
        (0, 0.91, 0, 0),
        (0, 0.5, 2000, 4),  # a prompt takes a tenth
        (0, 0.85, 2000, 1),  # it may be shorter, or cached
        (7, 0.5, 2000, 1),
    ],
)
def test_no_more_is_claimed_than_slots_and_the_kv_cache_have_room_for(
    taken: int, kv_usage: float, kv_tokens: int, free: int
) -> None:
    engine = Engine(kv_tokens=kv_tokens)
    engine.sequences, engine.kv_usage = taken, kv_usage
    assert make_room(engine).free() == free


def test_a_job_takes_one_slot_until_the_engine_counts_it() -> None:
    engine = Engine()
    room, outputs = make_room(engine), [make_output(1), make_output(2)]
    for output in outputs:
        room.started(output)
    assert room.free() == 6
    outputs[0].prompt(0, 5)
    engine.sequences = 3  # it has three sequences
    assert room.free() == 4
    outputs[1].discarded = True
    assert room.free() == 5


def test_a_prompt_takes_room_in_the_kv_cache_until_the_first_token() -> None:
    engine = Engine(kv_tokens=2000)
    room, output = make_room(engine), make_output(body=b"x" * 4000)
    assert room.free() == 8
    room.started(output)
    assert room.free() == 4  # 0.4 of the cache is left to prompts of 0.1 each
    output.prompt(0, 600)
    engine.sequences = 1
    assert room.free() == 6
    output.delta(0, 0, (1,), "a")
    assert room.free() == 7


@pytest.mark.parametrize("max_loras", [0, 1])
def test_nothing_is_claimed_while_a_job_waits_for_its_adapters_place(max_loras: int) -> None:
    room = make_room(Engine(max_loras=max_loras))
    running, waiting, later = (make_output(number) for number in range(3))
    for before_s, output in zip((10, 9, 8), (running, waiting, later), strict=True):
        output.started -= before_s
        output.prompt(0, 5)
        room.started(output)
    running.delta(0, 0, (1,), "a")
    assert room.free() == 8
    later.delta(0, 0, (1,), "a")  # it has gone past the one that waits
    assert room.free() == (0 if max_loras else 8)
    assert room.state[0] is (WorkerState.BUSY if max_loras else WorkerState.READY)
    waiting.delta(0, 0, (1,), "a")
    assert room.free() == 8


def test_claims_in_flight_count() -> None:
    room = make_room(Engine())
    room.requested = 5
    assert room.free() == 3


def test_a_worker_that_drains_is_paused_or_has_lost_its_engine_claims_nothing() -> None:
    engine = Engine()
    room = make_room(engine)
    assert room.state == (WorkerState.READY, "8 of 8 slots are free")
    room.paused = "paused by an operator"
    assert (room.free(), room.state[0]) == (0, WorkerState.PAUSED)
    room.draining = True
    assert (room.free(), room.state[0]) == (0, WorkerState.DRAINING)
    room.draining, room.paused, engine.dead = False, "", True
    assert room.free() == 0


def test_why_nothing_is_claimed() -> None:
    engine = Engine(kv_tokens=1000)
    room = make_room(engine)
    assert room.state == (WorkerState.READY, "the KV cache has room for 4 more")
    engine.kv_usage = 0.95
    assert room.state == (WorkerState.BUSY, "KV cache 95% full")
    engine.sequences = 8
    assert room.state == (WorkerState.BUSY, "all 8 slots are taken")


# --- charges ---


def test_what_was_charged_at_the_claim_is_corrected_at_the_end(clock: Clock) -> None:
    charges = Charges(ShareRules(half_life_s=0, ahead=0.5, lift=0.5))
    output = make_output(charged=400.0, weight=2.0, tenant="b")
    output.prompt(0, 100)
    for n in range(10):
        output.delta(0, 0, (n,), "x")
    charges.ended(0, output, is_over=True)
    assert charges.take(1, []) == {}
    # A prompt costs 1 for each token, an answer 2, over the weight.
    assert charges.take(0, []) == {(DEFAULT, "b"): pytest.approx((100 + 20) / 2 - 400)}
    clock.now += 10
    assert charges.take(0, []) == {}


def test_a_running_job_is_charged_ahead_and_what_was_charged_before_halves(clock: Clock) -> None:
    charges, output = Charges(ShareRules(half_life_s=10, ahead=0.5)), make_output(charged=100.0)
    output.prompt(0, 50)
    clock.now += 10
    expected = 50 + 0.5 * 2 * FIRST_TOKENS - 100 / 2
    assert charges.take(0, [output]) == {(DEFAULT, "a"): pytest.approx(expected)}


def test_the_past_of_a_continued_job_was_charged_before(clock: Clock) -> None:
    charges, output = Charges(ShareRules(half_life_s=0)), make_output()
    output.take_over(DeltaDecoder(), 100, 10)
    output.delta(0, 0, (1,), "x")
    charges.ended(0, output, is_over=True)
    assert charges.take(0, []) == {(DEFAULT, "a"): 2.0}


def test_claims_report_often_only_where_tenants_share(clock: Clock) -> None:
    charges, output = Charges(ShareRules()), make_output()
    assert charges.take(0, [output])
    charges.ended(0, make_output(), is_over=False)
    assert charges.take(0, [output]) == {}
    charges.started(make_output(charged=1.0))
    assert set(charges.take(0, [output])) == {(DEFAULT, "a")}
    clock.now += 1.1
    assert charges.take(0, [output])


def test_the_expected_cost_follows_the_last_jobs_that_have_ended() -> None:
    charges = Charges(ShareRules(ahead=0.5))
    assert charges.expected_cost == 2 * FIRST_TOKENS
    for is_over in (False, True, True):
        output = make_output()
        output.prompt(0, 40)
        output.delta(0, 0, tuple(range(20)), "x")
        charges.ended(0, output, is_over=is_over)
    assert (charges.prompt_tokens, charges.expected_cost) == (40, 40 + 20)


# --- jobs that move ---


@pytest.mark.parametrize(
    ("room", "waiting", "jobs", "sequences", "count"),
    [(8, 0, 4, 4, 4), (3, 0, 4, 4, 3), (8, 6, 4, 4, 2), (2, 5, 4, 4, 0), (8, 0, 4, 16, 2)],
)
def test_no_more_jobs_move_than_other_workers_have_room_for(
    room: int, waiting: int, jobs: int, sequences: int, count: int
) -> None:
    assert how_many(room, waiting, jobs, sequences) == count


def test_jobs_with_the_least_work_in_them_move_first() -> None:
    waiting, short, long, bound, over = [make_output(n) for n in range(5)]
    for output, tokens in ((short, 1), (long, 9), (bound, 0)):
        output.prompt(0, 5)
        for n in range(tokens):
            output.delta(0, 0, (n,), "x")
    bound.keep_here()
    over.discarded = True
    assert cheapest([long, bound, over, short, waiting]) == [waiting, short, long]


def test_flex_jobs_make_room_but_for_a_tenth_of_all_and_those_with_a_deadline() -> None:
    publisher = ShardPublisher(Mock(worker_id="w"), 0)
    for number in range(20):
        publisher.add(make_output(number, lane=FLEX if number < 4 else DEFAULT))
    publisher.add(make_output(20, lane=FLEX, stays=True))
    assert len(yieldable(publisher)) == 3  # of five; two of 21 stay
    assert all(output.job.share.lane == FLEX for output in yieldable(publisher))


# --- home shards ---


@pytest.mark.parametrize("shards", [1, 2, 3, 4, 7, 12])
@pytest.mark.parametrize("n_workers", range(1, 16))
def test_every_shard_has_a_worker_and_the_workers_have_about_as_many(
    n_workers: int, shards: int
) -> None:
    workers = [f"w{n}" for n in range(n_workers)]
    own = {worker: homes(worker, workers, shards) for worker in workers}
    of_shard = [sum(shard in each for each in own.values()) for shard in range(shards)]
    counts = of_shard if n_workers >= shards else [len(each) for each in own.values()]
    assert min(of_shard) >= 1
    assert min(len(each) for each in own.values()) >= 1
    assert max(counts) - min(counts) <= 1
    assert n_workers < shards or all(len(each) == 1 for each in own.values())


def test_a_worker_that_is_not_registered_yet_counts_itself() -> None:
    assert homes("w2", [], 3) == {0, 1, 2}
    assert homes("w2", ["w1", "w3"], 3) == {1}

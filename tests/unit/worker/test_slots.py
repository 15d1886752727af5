"""Slot accounting: a job takes its slots once, before and after it reaches the engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from shared.job.job import LeasedJob
from worker.core.charges import Charges
from worker.core.output_buffer import OutputBuffer
from worker.core.slots import SlotAccounting
from worker.engines.interface import Capacity, Engine, Load


class StubEngine:
    """An engine whose load the test sets."""

    capacity = Capacity(max_num_seqs=8, max_model_len=100)
    dead = False

    def __init__(self) -> None:
        self.unfinished = 0

    def load(self) -> Load:
        return Load(self.unfinished, 0.0)


class StubCharges:
    """Means that the test sets."""

    prompt_tokens = 0.0


class Worker:
    """The jobs of a worker and its slot accounting."""

    def __init__(self) -> None:
        self.engine = StubEngine()
        self.runs: dict[str, Any] = {}
        self.charges = StubCharges()
        self.account(0.95)

    def account(self, kv_high_watermark: float) -> None:
        """Begin again, with another watermark."""
        engine, charges, runs = cast(Engine, self.engine), cast(Charges, self.charges), self.runs
        self.slots = SlotAccounting(engine, runs, charges, kv_high_watermark)

    def claim(self, job_id: str, body: bytes = b"{}") -> OutputBuffer:
        job = LeasedJob(job_id, 0, "l", 1, "f", 1, False, "/v1/embeddings", body, "", False, 0.0)
        buffer = OutputBuffer(job, lambda _: None)
        self.runs[job_id] = run = SimpleNamespace(job=job, buffer=buffer)
        self.slots.add(run)  # type: ignore[arg-type]
        return buffer

    @property
    def free(self) -> int:
        """As the advertised slots see it and as the claimers do."""
        free = self.slots.free()
        decision = self.slots.decision
        assert decision.count + decision.left_over == free
        return free


def test_a_claimed_job_takes_one_slot_until_it_reaches_the_engine() -> None:
    worker = Worker()
    assert worker.free == 8
    worker.claim("a")
    worker.claim("b")
    assert worker.free == 6


def test_a_job_that_is_leased_again_takes_one_slot() -> None:
    worker = Worker()
    worker.claim("a")
    worker.claim("a")
    assert worker.free == 7


@pytest.mark.parametrize("sequences", [1, 3])
def test_in_the_engine_a_job_takes_as_many_slots_as_it_has_sequences(sequences: int) -> None:
    worker = Worker()
    buffer = worker.claim("a")
    buffer.prompt(0, 5)
    worker.engine.unfinished = sequences
    assert worker.free == 8 - sequences


def test_an_embedding_takes_one_slot() -> None:
    """Its engine call journals the prompt and nothing else (JournalledEngine.encode)."""
    worker = Worker()
    worker.claim("embedding").prompt(0, 5)
    worker.engine.unfinished = 1
    assert worker.free == 7
    worker.claim("generation")
    assert worker.free == 6


def test_a_job_that_ends_without_reaching_the_engine_frees_its_slot() -> None:
    worker = Worker()
    worker.claim("refused")
    del worker.runs["refused"]
    assert worker.free == 8


def test_a_draining_worker_has_no_free_slots() -> None:
    worker = Worker()
    worker.slots.draining = True
    assert worker.free == 0


def test_a_prompt_takes_room_in_the_kv_cache_until_the_first_token() -> None:
    worker = Worker()
    worker.engine.capacity = Capacity(max_num_seqs=8, max_model_len=500, kv_tokens=1000)
    worker.account(0.8)
    first = worker.claim("a")
    first.prompt(0, 400)
    worker.engine.unfinished = 1
    assert worker.free == 7
    second = worker.claim("b")
    second.prompt(0, 450)
    worker.engine.unfinished = 2
    assert worker.free == 0
    second.delta(0, 0, [1], "x")
    assert worker.free == 6, "the engine's own figure counts it now"


def test_a_body_is_an_estimate_of_its_prompt() -> None:
    worker = Worker()
    worker.engine.capacity = Capacity(max_num_seqs=8, max_model_len=500, kv_tokens=1000)
    worker.account(0.6)
    worker.claim("a", body=b"x" * 1_000_000)
    assert worker.free == 7, "no prompt is longer than 500 tokens"
    worker.claim("b", body=b"x" * 400)
    assert worker.free == 6
    worker.claim("c", body=b"x" * 400)
    assert worker.free == 0
    worker.runs.pop("a")
    assert worker.free == 6


def test_no_more_jobs_are_claimed_than_the_kv_cache_has_room_for() -> None:
    """By the mean prompt of the latest jobs; those of a claim in flight count, too."""
    worker = Worker()
    worker.engine.capacity = Capacity(max_num_seqs=8, max_model_len=500, kv_tokens=1000)
    worker.account(0.8)
    worker.charges.prompt_tokens = 250.0
    assert worker.free == 3
    worker.slots.requested = 2
    assert worker.slots.next_claim(1).count == 1
    worker.slots.requested = 4
    assert worker.slots.next_claim(1).count == 0
    worker.slots.requested = 0
    worker.charges.prompt_tokens = 90_000.0
    assert worker.free == 1, "while it is below the watermark"
    worker.claim("a", body=b"x" * 1000).prompt(0, 250)
    worker.charges.prompt_tokens = 250.0
    worker.engine.unfinished = 1
    assert worker.free == 2


@pytest.mark.parametrize(
    ("state", "leased"),
    [({}, 1), ({"draining": True}, 0), ({"isolated": True}, 0), ({"paused": "by an operator"}, 0)],
)
def test_a_full_worker_claims_in_the_place_of_a_job_that_is_handed_back(
    state: dict[str, Any], leased: int
) -> None:
    """The engine may not have ended that job yet. A worker that began to drain claims nothing."""
    worker = Worker()
    worker.engine.unfinished = 8
    worker.slots.requested = worker.slots.exchanged = 1
    for name, value in state.items():
        setattr(worker.slots, name, value)
    assert worker.slots.may_claim == bool(leased)
    assert 1 - worker.slots.overcommitted() == leased

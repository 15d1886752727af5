"""How many jobs a worker claims, as a table."""

from __future__ import annotations

from typing import Any

import pytest

from shared.job.states import WorkerState
from tests.harness.settings import Settings
from worker.core import lifecycle
from worker.core.claim_policy import (
    CLAIM_BATCH,
    PATIENCE_S,
    SlotSnapshot,
    SuspectSnapshot,
    SuspectStep,
    decide,
    free_slots,
    next_suspect_step,
)

READY, BUSY, DRAINING = WorkerState.READY, WorkerState.BUSY, WorkerState.DRAINING
IDLE = SlotSnapshot(slots=64, unfinished=0, starting=0, kv_usage=0.0, kv_high_watermark=0.95)


@pytest.mark.parametrize(
    ("now", "count", "state", "reason"),
    [
        ({}, CLAIM_BATCH, READY, "64 of 64 slots are free"),
        ({"unfinished": 60}, 4, READY, "4 of 64"),
        ({"unfinished": 60, "starting": 3}, 1, READY, "1 of 64"),
        ({"unfinished": 60, "starting": 4}, 0, BUSY, "all 64 slots"),
        ({"unfinished": 64}, 0, BUSY, "all 64 slots"),
        ({"starting": 64}, 0, BUSY, "all 64 slots"),
        ({"unfinished": 70, "starting": 9}, 0, BUSY, "all 64 slots"),
        ({"slots": 1}, 1, READY, "1 of 1"),
        ({"kv_usage": 0.95}, CLAIM_BATCH, READY, "64 of 64"),
        ({"kv_usage": 0.55, "kv_per_prompt": 0.125}, 3, READY, "room for 3 more"),
        ({"kv_usage": 0.94, "kv_per_prompt": 0.125}, 1, READY, "room for 1 more"),
        ({"kv_usage": 0.55, "kv_per_prompt": 0.125, "unfinished": 62}, 2, READY, "2 of 64"),
        ({"kv_usage": 0.951, "kv_per_prompt": 0.125}, 0, BUSY, "KV cache 95% full"),
        ({"kv_usage": 0.951}, 0, BUSY, "KV cache 95% full"),
        ({"kv_usage": 1.0, "kv_high_watermark": 1.0}, CLAIM_BATCH, READY, "64 of 64"),
        ({"kv_usage": 1.0, "unfinished": 64}, 0, BUSY, "all 64 slots"),
        ({"draining": True}, 0, DRAINING, "draining"),
        ({"isolated": True}, 0, BUSY, "suspects alone"),
        ({"isolated": True, "draining": True}, 0, DRAINING, "draining"),
        ({"draining": True, "unfinished": 64, "kv_usage": 1.0}, 0, DRAINING, "draining"),
    ],
)
def test_what_is_claimed_and_why(
    now: dict[str, float], count: int, state: WorkerState, reason: str
) -> None:
    decision = decide(IDLE._replace(**now))
    assert (decision.count, decision.state) == (count, state)
    assert reason in decision.reason
    assert free_slots(IDLE._replace(**now)) == decision.count + decision.left_over


@pytest.mark.parametrize(("free", "count"), [(0, 0), (1, 1), (2, 1), (3, 2), (64, CLAIM_BATCH)])
def test_two_claimers_share_the_free_slots(free: int, count: int) -> None:
    decision = decide(IDLE._replace(unfinished=64 - free), 2)
    assert (decision.count, decision.count + decision.left_over) == (count, free)


@pytest.mark.parametrize("unfinished", range(0, 65, 4))
@pytest.mark.parametrize("starting", range(0, 65, 8))
def test_never_more_is_claimed_than_can_run(unfinished: int, starting: int) -> None:
    decision = decide(IDLE._replace(unfinished=unfinished, starting=starting))
    assert 0 <= decision.count <= max(0, 64 - unfinished - starting)
    assert (decision.count == 0) == (decision.state is BUSY)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "the demo model"),
        ({"model": "org/m"}, "org/m"),
        ({"engine": "simulated"}, "the simulated engine"),
    ],
)
def test_the_log_names_the_model_that_is_loaded(settings: dict[str, Any], words: str) -> None:
    assert lifecycle._model_description(Settings(**settings).described.own) == words


WAIT, ISOLATE, TAKE, END = SuspectStep
NO_SUSPECTS = SuspectSnapshot(waiting=False, waited_s=0.0, isolated=False, others=0, unproven=0)


@pytest.mark.parametrize(
    ("now", "step"),
    [
        ({}, END),
        ({"others": 5}, END),
        ({"waiting": True}, ISOLATE),
        ({"waiting": True, "others": 1}, WAIT),
        ({"waiting": True, "others": 1, "waited_s": PATIENCE_S}, ISOLATE),
        ({"waiting": True, "draining": True}, END),
        ({"waiting": True, "isolated": True, "others": 1}, WAIT),
        ({"waiting": True, "isolated": True}, TAKE),
        ({"waiting": True, "isolated": True, "unproven": 1}, WAIT),
        ({"isolated": True, "unproven": 1}, WAIT),
        ({"isolated": True, "unproven": 1, "draining": True}, END),
        ({"isolated": True}, END),
        ({"isolated": True, "others": 3}, END),
    ],
)
def test_what_a_worker_does_about_suspects(now: dict[str, Any], step: SuspectStep) -> None:
    assert next_suspect_step(NO_SUSPECTS._replace(**now)) is step

"""What a worker reports of its tenants' jobs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shared.job.fair_shares import EXPECTED_COST, Account, ShareRules, cost
from shared.job.job import Share
from worker.core.charges import Charges

RULES = ShareRules()
A, B = Account("pool", "default", "a"), Account("pool", "default", "b")


class Clock:
    """The monotonic clock of the charges."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("worker.core.charges.time.monotonic", clock)
    return clock


class Run(SimpleNamespace):
    """A JobRun, as far as it counts here."""

    __hash__ = object.__hash__


def run(tenant: str = "a", *, generation: int = 1, shard: int = 0, share: Any = None) -> Any:
    share = share or Share("default", 1.0, 0.0)
    job = SimpleNamespace(tenant=tenant, share=share, shard=shard, generation=generation)
    buffer = SimpleNamespace(prompt_tokens=0, completion_tokens=0, new_tokens=0)
    return Run(job=job, buffer=buffer, started=Clock.now)


def make(runs: Any, rules: ShareRules = RULES) -> Charges:
    return Charges("pool", runs, rules)


def generated(a_run: Any, prompt: int, output: int) -> None:
    a_run.buffer.prompt_tokens = prompt
    a_run.buffer.completion_tokens = a_run.buffer.new_tokens = output


def reported(charges: Charges, *takes: int) -> float:
    return sum(sum(charges.take(shard).values()) for shard in takes or (0,))


def test_a_job_costs_its_prompt_and_twice_its_answer() -> None:
    job = run()
    charges = make({"1": job})
    total = 0.0
    for output in (1, 50, 300, 500):
        generated(job, 30, output)
        total += charges.take(0)[A]
    charges._runs = {}
    charges.ended(job, released=False)
    total += charges.take(0)[A]
    assert total == pytest.approx(cost(30, 500)) == 1030
    assert charges.take(0) == {}


def test_what_was_charged_at_the_claim_is_corrected() -> None:
    job = run(share=Share("default", 1.0, EXPECTED_COST))
    generated(job, 10, 5)
    charges = make({})
    charges.ended(job, released=False)
    assert charges.take(0)[A] == cost(10, 5) - EXPECTED_COST


def test_half_of_an_expected_answer_is_charged_before_it_comes() -> None:
    job = run()
    generated(job, 100, 0)
    charges = make({"1": job})
    assert charges.take(0)[A] == 100 + EXPECTED_COST / 2
    generated(job, 100, 50)
    assert charges.take(0)[A] == pytest.approx(50), "the rest of it is expected no more"


def test_a_weight_divides_the_cost() -> None:
    job = run(share=Share("default", 4.0, 0.0))
    generated(job, 100, 50)
    charges = make({})
    charges.ended(job, released=False)
    assert charges.take(0)[A] == 50


def test_shards_and_tenants_are_apart() -> None:
    jobs = {"1": run(), "2": run("b"), "3": run("b", shard=1)}
    for job in jobs.values():
        generated(job, 1000, 0)
    charges = make(jobs)
    assert set(charges.take(0)) == {A, B}
    assert set(charges.take(1)) == {B}
    assert charges.take(2) == {}


def test_the_prompt_of_a_continued_job_was_charged_before() -> None:
    job = run(generation=2)
    generated(job, 100, 50)
    charges = make({})
    charges.ended(job, released=True)
    assert charges.take(0)[A] == cost(0, 50)


def test_the_expected_cost_follows_the_last_jobs() -> None:
    charges = make({})
    for _ in range(100):
        job = run()
        generated(job, 10, 90)
        charges.ended(job, released=False)
    assert charges.expected_cost == pytest.approx(100, rel=0.01)
    job = run()
    generated(job, 5000, 5000)
    charges.ended(job, released=True)
    assert charges.expected_cost == pytest.approx(100, rel=0.01), "its end is not known"


def test_by_vtcs_rules_an_answer_is_charged_as_it_comes() -> None:
    job = run()
    generated(job, 100, 0)
    charges = make({"1": job}, ShareRules(0.0, 0.0, 1.0))
    assert charges.expected_cost == EXPECTED_COST / 2
    assert charges.take(0)[A] == 100
    generated(job, 100, 50)
    assert charges.take(0)[A] == 100


def test_claims_report_only_where_tenants_share(clock: Clock) -> None:
    running, ended = run(), run("b", share=Share("default", 1.0, EXPECTED_COST))
    generated(running, 100, 1)
    generated(ended, 10, 5)
    charges = make({"1": running})
    charges.take(0)
    charges.ended(ended, released=False)
    assert charges.take_with_claim(0) == {}
    charges.started(ended.job)
    assert set(charges.take_with_claim(0)) == {B}, "the other one was reported just now"
    assert charges.take_with_claim(0) == {}
    clock.now += 1.5
    charges.started(ended.job)
    generated(running, 100, 300)
    assert set(charges.take_with_claim(0)) == {A}


def test_short_answers_cost_what_they_cost(clock: Clock) -> None:
    """What was charged ahead has halved since: the correction is as much smaller."""
    job = run(share=Share("default", 1.0, EXPECTED_COST))
    generated(job, 10, 1)
    charges = make({})
    clock.now += RULES.half_life_s
    charges.ended(job, released=False)
    assert charges.take(0)[A] == cost(10, 1) - EXPECTED_COST / 2


def test_what_is_expected_still_is_charged_anew(clock: Clock) -> None:
    job = run()
    generated(job, 100, 0)
    charges = make({"1": job})
    level = 0.0
    for output in (0, 50, 100, 200, 400):
        generated(job, 100, output)
        level = level / 2 + charges.take(0)[A]
        clock.now += RULES.half_life_s
    made = (((100 / 2 + 100) / 2 + 100) / 2 + 200) / 2 + 400
    assert level == pytest.approx(made), "its last 400 tokens are more than was expected"

"""Loads that show one property of fair shares each; their answers have lognormal lengths. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import mean

from load_tests.fairness.difference import Call
from load_tests.harness.spread import percentile
from load_tests.harness.table import Table

_SEED = 7


@dataclass(frozen=True, slots=True)
class Scenario:
    """A load, and the time in which shares are compared."""

    what: str
    calls: Sequence[Call]
    weights: Mapping[str, float]
    compared_s: tuple[float, float]
    """Also that of the starts whose distance is shown."""


def _call(rng: random.Random, tenant: str, at_s: float, *, detached: bool = False) -> Call:
    prompt_tokens = max(4, int(rng.lognormvariate(4.5, 0.9)))
    output_tokens = min(1000, max(8, int(rng.lognormvariate(5.3, 0.7))))
    return Call(tenant, at_s, prompt_tokens, output_tokens, detached=detached)


def _flood() -> Scenario:
    rng = random.Random(_SEED)
    flood = [_call(rng, "a", 0.0, detached=True) for _ in range(10_000)]
    steady = [_call(rng, "b", 30.0 + n) for n in range(300)]
    return Scenario("a submits 10,000 jobs, b calls once a second", [*flood, *steady], {}, (0, 0))


def _crowd() -> Scenario:
    """As `flood`, small enough for real vLLM, and streamed, as its own server has no jobs."""
    rng = random.Random(_SEED)
    calls = [_call(rng, "a", n / 1000) for n in range(2000)]
    calls += [_call(rng, "b", 3.0 + n) for n in range(30)]
    for call in calls:
        call.prompt_tokens = min(call.prompt_tokens, 250)
    return Scenario("a sends 2,000 calls in 2 s, b one a second", calls, {}, (0, 0))


def _equal() -> Scenario:
    rng, tenants = random.Random(_SEED), [f"t{n}" for n in range(10)]
    calls = [_call(rng, each, n / 10) for n in range(150) for each in tenants]
    return Scenario(
        "ten tenants with 150 calls each", calls, dict.fromkeys(tenants, 1.0), (60, 360)
    )


def _weighted() -> Scenario:
    rng, weights = random.Random(_SEED), {"one": 1.0, "two": 2.0, "four": 4.0}
    calls = [_call(rng, each, n / 25) for n in range(900) for each in weights]
    return Scenario("three tenants with weights 1, 2, 4", calls, weights, (30, 330))


def _newcomers(count: int) -> Scenario:
    """The last answers of `old`, which was alone, are about as late as those of the others."""
    rng = random.Random(_SEED)
    calls = [_call(rng, "old", n / 250) for n in range(900)]
    calls += [
        _call(rng, f"new{tenant}", 120.0 + (n * count + tenant) / 250)
        for n in range(900 // count)
        for tenant in range(count)
    ]
    return Scenario(f"{count} tenants come to one that was alone", calls, {}, (115, 260))


SCENARIOS: Mapping[str, Callable[[], Scenario]] = {
    "flood": _flood,
    "crowd": _crowd,
    "equal": _equal,
    "weighted": _weighted,
    **{f"newcomers{count}": partial(_newcomers, count) for count in (1, 4, 16)},
}


def table(scenario: Scenario, calls: Sequence[Call]) -> Table:
    """What each tenant was served, and how long it waited."""
    low, high = scenario.compared_s
    answered = [call for call in calls if call.token_times_s]
    served = {
        tenant: sum(call.by_token(low, high) for call in answered if call.tenant == tenant)
        for tenant in scenario.weights
    }
    rows = []
    for tenant in sorted({call.tenant for call in answered}):
        waits = [call.first_s - call.at_s for call in answered if call.tenant == tenant]
        lengths = [call.end_s - call.first_s for call in answered if call.tenant == tenant]
        share = "-"
        if tenant in served:
            expected = scenario.weights[tenant] / sum(scenario.weights.values())
            share = f"{served[tenant] / sum(served.values()) / expected:.3f}"
        waited = [f"{percentile(waits, at):.1f}" for at in (0.5, 0.99, 1.0)]
        starts = sorted(call.first_s for call in answered if call.tenant == tenant)
        gaps = [after - before for before, after in pairwise(starts) if low < before < high]
        longest = f"{max(gaps):.1f}" if gaps else "-"
        rows.append([tenant, str(len(waits)), *waited, f"{mean(lengths):.1f}", share, longest])
    head = [
        "tenant",
        "answers",
        "wait\np50 s",
        "p99 s",
        "max s",
        "answer\nmean s",
        "share /\nweight",
        "without\na start s",
    ]
    index = f"; Jain's index {_jain(scenario, served):.4f}" if served else ""
    return Table(f"{scenario.what}{index}", head, rows)


def _jain(scenario: Scenario, served: Mapping[str, float]) -> float:
    """Of what each was served over its weight: 1 is equal."""
    values = [served[tenant] / weight for tenant, weight in scenario.weights.items()]
    return sum(values) ** 2 / (len(values) * sum(v * v for v in values)) if any(values) else 1.0

"""Service difference between tenants, as VTC's paper (OSDI'24) measures fairness. Pure.

A request costs its prompt's tokens plus twice its answer's. Every 10 s, over the 60 s around it:
what each tenant asked for and what it was served. A tenant's difference is how far it lies behind
the tenant that was served most, but never more than what it asked for and did not get; the figure
of an instant is the sum over all tenants.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shared.job.rules import OUTPUT_COST, cost

WINDOW_S, STEP_S = 60.0, 10.0


@dataclass(slots=True)
class Call:
    """One request of a trace, and when its answer came. Seconds since the start of the trace."""

    tenant: str
    at_s: float
    prompt_tokens: int
    output_tokens: int
    token_times_s: list[float] = field(default_factory=list)
    """When each token came."""
    text: str = ""
    detached: bool = False
    """It is submitted to `POST /jobs`, and its answer is not waited for."""
    problem: str = ""
    """Why it has no whole answer; empty if it has one."""

    @property
    def cost(self) -> float:
        """What it is worth."""
        return cost(self.prompt_tokens, self.output_tokens)

    @property
    def first_s(self) -> float:
        """When its first token came."""
        return self.token_times_s[0]

    @property
    def end_s(self) -> float:
        """When its last token came."""
        return self.token_times_s[-1]

    def spread_evenly(self, low: float, high: float) -> float:
        """Its cost between two times, as published: the same at each moment of the answer."""
        length = self.end_s - self.first_s
        if length <= 1e-5:
            return 0.0
        return self.cost * max(0.0, min(high, self.end_s) - max(low, self.first_s)) / length

    def by_token(self, low: float, high: float) -> float:
        """Its cost between two times: the prompt's with the first token, then token by token."""
        times = self.token_times_s
        served = OUTPUT_COST * (bisect_left(times, high) - bisect_left(times, low))
        return served + (self.prompt_tokens if low <= times[0] < high else 0.0)


def differences(
    calls: Sequence[Call], served: Callable[[Call, float, float], float] = Call.spread_evenly
) -> list[float]:
    """The figure of each instant, in tokens a second."""
    tenants = sorted({call.tenant for call in calls})
    answered = [call for call in calls if not call.problem]
    end, found, middle = max(call.at_s for call in calls), [], WINDOW_S / 2
    while middle <= end - WINDOW_S / 2 + STEP_S / 2:
        low, high = middle - WINDOW_S / 2, middle + WINDOW_S / 2
        asked, got = dict.fromkeys(tenants, 0.0), dict.fromkeys(tenants, 0.0)
        for call in calls:
            if low <= call.at_s <= high:
                asked[call.tenant] += call.cost
        for call in answered:
            if call.first_s < high and call.end_s > low:
                got[call.tenant] += served(call, low, high)
        best = max(got.values())
        found.append(
            sum(min(best - got[each], abs(asked[each] - got[each])) for each in tenants) / WINDOW_S
        )
        middle += STEP_S
    return found

"""Carries the autoscale policy's state from one decision to the next. Pure."""

from __future__ import annotations

from dataclasses import replace

from shared.fleet.autoscale_types import Limits, Observation, PolicyState

_JITTER_S = 0.05
"""Two readings of the oldest job's age differ by up to this for the same job."""
_GAP_S = 90.0
"""Of a longer gap between two decisions only this much counts as time that has passed."""


def updated(now: Observation, last: PolicyState | None) -> PolicyState:
    """The last decision's state, updated by an observation; None: there was no decision yet."""
    oldest_at_s = now.at_s - now.oldest_s
    present = now.ready + now.starting
    # The first decision takes the present workers as what was needed until now.
    state = last or PolicyState(present, now.at_s, ((now.at_s, present),), now.at_s, now.at_s)
    passed_s = now.at_s - state.at_s
    # Time in which the clock was set back, or the autoscaler did not run, does not count.
    shift_s = passed_s - min(max(passed_s, 0.0), _GAP_S)
    taken = (
        last is None
        or shift_s != 0
        or now.waiting < state.waiting
        or oldest_at_s > state.oldest_at_s + _JITTER_S
    )
    state = _shifted(state, shift_s) if shift_s else state
    return replace(
        state,
        busy_at_s=now.at_s if now.waiting or now.running else state.busy_at_s,
        at_s=now.at_s,
        requested=still_starting(state.requested, now.starting, now.at_s),
        ready=now.ready,
        grew_at_s=now.at_s if last is None or now.ready > state.ready else state.grew_at_s,
        waiting=now.waiting,
        oldest_at_s=oldest_at_s,
        taken_at_s=now.at_s if taken or not now.waiting else state.taken_at_s,
    )


def still_starting(
    requested: tuple[tuple[float, int], ...], starting: int, at_s: float
) -> tuple[tuple[float, int], ...]:
    """(time of request, workers) of the `starting` workers; those requested first are ready first.

    Workers beyond all requests count as requested at `at_s`.
    """
    kept: list[tuple[float, int]] = []
    for requested_at_s, workers in reversed(requested):
        if starting > 0:
            kept.append((requested_at_s, min(workers, starting)))
            starting -= workers
    kept.reverse()
    return (*kept, (at_s, starting)) if starting > 0 else tuple(kept)


def window(
    now: Observation, limits: Limits, state: PolicyState, needed: int
) -> tuple[tuple[float, int], ...]:
    """(time, workers) needed in the last `down_after_s` and now, falling: the first is the most."""
    workers = min(needed, limits.max)
    kept = [
        (at_s, earlier)
        for at_s, earlier in state.needs
        if now.at_s - at_s < limits.down_after_s and earlier > workers
    ]
    return (*kept, (now.at_s, workers))


def _shifted(state: PolicyState, by_s: float) -> PolicyState:
    return replace(
        state,
        changed_at_s=state.changed_at_s + by_s,
        needs=tuple((at_s + by_s, workers) for at_s, workers in state.needs),
        busy_at_s=state.busy_at_s + by_s,
        requested=tuple((at_s + by_s, workers) for at_s, workers in state.requested),
        grew_at_s=state.grew_at_s + by_s,
    )

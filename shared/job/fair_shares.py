"""The rules of fair shares: of the tenants whose jobs wait in a lane, the one with the lowest
level is next.

A tenant's level is what it was served lately in a pool's lane: tokens of its prompts and twice
those of its answers, over its weight. It halves every `HALF_LIFE_S`. This is VTC's counter
("Fairness in Serving Large Language Models", OSDI'24) with two changes: it forgets, and what a job
is expected to cost is charged as it is claimed. `scripts/common/turns.lua` keeps the levels.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

HALF_LIFE_S: Final = 20.0
"""With a shorter one a burst is forgotten too soon, with a longer one a tenant that was alone
waits longer when others come: on VTC's trace 10 to 45 s are within 3 %."""
LIFT: Final = 0.5
"""A tenant that comes back has at least this part of the lowest level that waits."""
OUTPUT_COST: Final = 2.0
"""Of a generated token; a token of a prompt costs 1."""
EXPECTED_COST: Final = 400.0
"""Of a worker's first jobs."""


def cost(prompt_tokens: int, output_tokens: int) -> float:
    """What a job has cost."""
    return prompt_tokens + OUTPUT_COST * output_tokens


class Account(NamedTuple):
    """What has a level."""

    pool: str
    lane: str
    tenant: str


NOTHING: Final[Mapping[Account, float]] = MappingProxyType({})
"""To charge."""

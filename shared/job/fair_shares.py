"""The rules of fair shares: of the tenants whose jobs wait in a lane, the one with the lowest
level is next.

A tenant's level is what it was served lately in all lanes of a pool: tokens of its prompts and
twice those of its answers, over its weight. This is VTC's counter ("Fairness in Serving Large
Language Models", OSDI'24) with two changes: it forgets, and a part of what an answer is expected to
cost is charged as its job is claimed, with more of it where the level is made of few jobs, which
forgets most between two claims. `scripts/common/lines.lua` keeps the levels.
"""

from __future__ import annotations

from typing import Final, NamedTuple

OUTPUT_COST: Final = 2.0
"""Of a generated token; a token of a prompt costs 1."""
FIRST_TOKENS: Final = 200.0
"""Of prompt and answer each, where a worker has seen no job yet."""
EXPECTED_COST: Final = 2 * FIRST_TOKENS
"""Of a job with so many."""


class ShareRules(NamedTuple):
    """How levels change. With 0, 0 and 1 these are VTC's own rules."""

    half_life_s: float = 20.0
    """In this time a level halves; 0: never. After a short one a burst is forgotten too soon, with
    a long one a tenant that was alone waits longer when others come."""
    ahead: float = 0.5
    """The part of an expected answer that is charged as its job is claimed."""
    lift: float = 0.5
    """A tenant that comes back has at least this part of the lowest level that waits."""

    @property
    def half_life_us(self) -> int:
        """As the scripts get it."""
        return int(self.half_life_s * 1e6)


def cost(prompt_tokens: int, output_tokens: int) -> float:
    """What a job has cost."""
    return prompt_tokens + OUTPUT_COST * output_tokens

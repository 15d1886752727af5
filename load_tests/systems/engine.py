"""The engine that every system serves: the simulated one, with the same settings everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shared.platform.settings import Settings, to_environment

MODEL = "simulated"
"""The name that clients use."""
_PROMPT = "Say something short please. " * 4


@dataclass(frozen=True, slots=True)
class EngineTiming:
    """How fast the engine is. Prefill costs nothing: what is measured is not the engine."""

    step_ms: float
    """Shortest step."""
    step_us_per_seq: float
    """Step time per running sequence."""
    max_num_seqs: int = 1024

    def step_s(self, running: int) -> float:
        """The length of a step with so many sequences; every one gets a token in it."""
        return max(self.step_ms / 1e3, self.step_us_per_seq * running / 1e6)

    def environment(self, **changes: Any) -> dict[str, str]:
        """For a process that reads Flotilla's settings; all others stay at their defaults."""
        return to_environment(
            Settings(),
            engine="simulated",
            sim_step_ms=self.step_ms,
            sim_step_us_per_seq=self.step_us_per_seq,
            sim_max_num_seqs=self.max_num_seqs,
            sim_prefill_us_per_token=0,
            **changes,
        )


PACED = EngineTiming(step_ms=10, step_us_per_seq=250)
"""The pace of a GPU: 100 tokens a second for one stream, 62 each for 64."""
FAST = EngineTiming(step_ms=0.5, step_us_per_seq=0)
"""Faster than what is before it: shows where that ends."""
SLOW = EngineTiming(step_ms=2000, step_us_per_seq=0)
"""Streams that are open and silent."""


def request_body(*, tokens: int, stream: bool) -> dict[str, Any]:
    """The same for all systems: an answer of exactly so many tokens."""
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": _PROMPT}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": stream,
    }

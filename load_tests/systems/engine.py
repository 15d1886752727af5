"""The engine behind every system, the simulated one with equal settings, and the request to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shared.platform.settings import to_environment

MODEL = "simulated"
"""The model name in requests."""
CHAT_PATH = "/v1/chat/completions"
_PROMPT = "Say something short please. " * 4


@dataclass(frozen=True, slots=True)
class EngineTiming:
    """How fast the simulated engine is. Prefill takes no time, as the engine is not measured."""

    step_ms: float
    """Milliseconds of the shortest step."""
    step_us_per_seq: float
    """Microseconds of step time per running sequence."""
    max_num_seqs: int = 1024

    def step_s(self, running: int) -> float:
        """Return the seconds of a step with `running` sequences; each gets one token in it."""
        return max(self.step_ms / 1e3, self.step_us_per_seq * running / 1e6)

    def settings(self, **changes: Any) -> dict[str, Any]:
        """Return these settings of the engine, and `changes`."""
        settings = {
            "engine": "simulated",
            "sim_step_ms": self.step_ms,
            "sim_step_us_per_seq": self.step_us_per_seq,
            "sim_max_num_seqs": self.max_num_seqs,
            "sim_prefill_us_per_token": 0,
        }
        return settings | changes

    def environment(self) -> dict[str, str]:
        """Return environment variables for a process that reads Flotilla's settings.

        All settings but the engine's have their defaults.
        """
        return to_environment("", **self.settings())


PACED = EngineTiming(step_ms=10, step_us_per_seq=250)
"""The speed of a GPU: 100 tokens a second for one stream, 62 for each of 64."""
FAST = EngineTiming(step_ms=0.5, step_us_per_seq=0)
"""Faster than any server in front of it: shows how many tokens a second that server can send."""
SLOW = EngineTiming(step_ms=2000, step_us_per_seq=0)
"""Streams stay open without tokens."""


def request_body(*, tokens: int, stream: bool) -> dict[str, Any]:
    """Return the request that all systems get; its answer has exactly `tokens` tokens."""
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": _PROMPT}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": stream,
    }

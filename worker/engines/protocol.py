"""What the worker asks of an engine, and what an engine promises.

An engine is an ASGI application that answers vLLM's routes, plus three things that a queue worker
needs and HTTP can't give: how much room there is, when a step of the continuous batch has ended,
and the token ids of every delta. vLLM (`vllm.py`) and the simulated engine (`simulated/`) keep
the same promises; `tests/e2e/test_engine_conformance.py` runs over both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from starlette.types import Receive, Scope, Send


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the engine can hold; constant after `start`."""

    max_num_seqs: int
    """Sequences in one step of the continuous batch: the worker's slots."""
    kv_cache_tokens: int
    max_model_len: int
    """Prompt and answer together, in tokens."""


class Load(NamedTuple):
    """How full the engine is now."""

    unfinished: int
    """Sequences that were handed in and have not ended; exact."""
    kv_usage: float
    """Share of the KV cache in use, 0 to 1, as of the last step."""


class Journal(Protocol):
    """Takes what the engine generates for one job, token by token."""

    def prompt(self, call: int, n_tokens: int) -> None:
        """The prompt of the job's `call`-th generation has `n_tokens` tokens."""

    def delta(self, call: int, index: int, token_ids: Sequence[int], text: str) -> None:
        """One step's tokens of choice `index` of the job's `call`-th generation."""

    def chunk(self, data: bytes) -> None:
        """What the client gets of the delta just noted, behind all that the application has sent.

        For a delta whose bytes are known when it comes: to wake the application, for it to send
        them, costs more than to make them.
        """


JOURNAL: ContextVar[Journal | None] = ContextVar("JOURNAL", default=None)
"""The journal of the job in whose context the engine is called. The runner sets it before it calls
the ASGI application; tasks that the application starts inherit it."""


class Engine(Protocol):
    """One continuous batch: a GPU, a tensor-parallel group, or a CPU."""

    kind: str
    """Shown wherever the engine's output shows: `vllm 0.32.0`, `simulated`."""
    on_step: Callable[[], None]
    """Called in the event loop at the end of every engine step, after the step's outputs were put
    into their requests' queues. It may be set at any time."""

    async def start(self) -> None:
        """Load the model; returns when requests can be answered."""

    @property
    def capacity(self) -> Capacity:
        """Known after `start`."""

    def load(self) -> Load:
        """Cheap enough to call before every claim."""

    @property
    def dead(self) -> bool:
        """True once the engine can't be used any more; the process must then end."""

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer one HTTP request as vLLM's own application does.

        Every delta goes to the `Journal` in `JOURNAL` (if there is one) before the bytes made of it
        are sent; those of plain deltas may go to it, too. `http.disconnect` aborts the request.
        """

    def close(self) -> None:
        """End the engine and every process of it."""

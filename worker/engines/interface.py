"""The interface between the worker and its engine.

An engine is an ASGI application that serves vLLM's routes, those for operators (LoRA, sleep,
caches, profiler) too, plus three things that a queue worker needs and HTTP does not provide: the
free capacity, a callback at the end of each step of the continuous batch, and the token ids of
every delta. vLLM (`vllm/`) and the simulated engine
(`simulated/`) implement it; one test runs on both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from starlette.types import Receive, Scope, Send


@dataclass(frozen=True, slots=True)
class Capacity:
    """The engine's limits; constant after `start`."""

    max_num_seqs: int
    """Sequences in one step of the continuous batch: the worker's slots."""
    max_model_len: int
    """Longest prompt and answer together, in tokens."""
    max_loras: int = 0
    """LoRA adapters in one step; 0: the engine takes none."""
    kv_tokens: int = 0
    """Tokens that the KV cache holds; 0: not known."""


class Load(NamedTuple):
    """How full the engine is now."""

    unfinished: int
    """Sequences that were submitted and have not ended; exact."""
    kv_usage: float
    """Share of the KV cache in use, 0 to 1, at the last step."""


SCHEME = 1
"""Counted up when the parts of a context are computed in another way."""


class Context(NamedTuple):
    """Checksums of what an engine call depends on; 0: it has no such part.

    The same request can become another prompt: a middleware finds other passages, a template has
    today's date, a media URL has new content, an adapter was replaced, a worker has other weights.
    An answer that continues the tokens of the first attempt would come from two contexts then.
    """

    scheme: int
    """How the others were computed; contexts of two schemes can't be compared."""
    prompt: int
    """The rendered prompt's token ids."""
    media: int = 0
    adapter: int = 0
    model: int = 0
    """The weights."""


Logprobs = Sequence[Sequence[tuple[int, float, int | None, str | None]]]
"""For each token its alternatives, the token itself first: (token id, logprob, rank, text)."""


class Generated(NamedTuple):
    """What an earlier attempt has journaled as one delta of one call."""

    choice: int
    """Which of the call's `n` choices."""
    token_ids: Sequence[int]
    text: str
    logprobs: Logprobs | None
    """None if the request asks for none."""


class Past(NamedTuple):
    """What earlier attempts at a job have generated for one call, in the order of the journal."""

    deltas: Sequence[Generated]
    prompt_logprobs: Sequence[Any] | None
    """As the engine journaled them with the prompt; None if the request asks for none."""


class PastRefused(Exception):
    """An answer can't be continued; the text is the reason."""


class Journal(Protocol):
    """Receives what the engine generates for one job, token by token.

    A job makes one engine call per prompt, numbered from 0 (`call`).
    """

    def past(self, call: int) -> Past | None:
        """What earlier attempts generated for this call; None if there is nothing to continue."""

    def refuse_past(self, reason: str) -> None:
        """The engine can't continue this job; `reason` is for the log.

        The job's run is aborted as by `http.disconnect`; what the engine still sends is dropped.
        """

    def continued(self, how: str, decoded_again: int) -> None:
        """The engine continues a call that has a past, by `prefill` or by forced `replay`.

        `decoded_again`: how many tokens of the past it decodes once more for that.
        """

    def keep_here(self) -> None:
        """No engine could continue this call: the job is not handed over to another worker."""

    def context(self, call: int, context: Context) -> None:
        """What call number `call` depends on; called before anything is generated.

        Raises PastRefused, after it has aborted the run, if earlier attempts had another one.
        """

    def prompt(self, call: int, n_tokens: int, logprobs: Sequence[Any] | None = None) -> None:
        """Call number `call` has a prompt of `n_tokens` tokens and is about to enter the engine."""

    def cached(self, n_tokens: int) -> None:
        """So many tokens of a call's prompt were in the engine's cache; told once for each call."""

    def delta(
        self,
        call: int,
        index: int,
        token_ids: Sequence[int],
        text: str,
        logprobs: Logprobs | None = None,
    ) -> None:
        """One step's tokens of choice `index` of call number `call`, and their text.

        `token_ids` are kept as they are, not copied: they must not change afterwards.
        """

    def chunk(self, data: bytes) -> None:
        """Bytes of the answer that belong to the delta just journaled.

        For deltas whose bytes are known at once: waking the application's task to send them would
        cost more than making them. They follow all that the application has sent.
        """


NO_ROUTE = "This model does not serve"
"""An engine's message begins with it where it has no such route: 404, or 405 for the method."""

JOURNAL: ContextVar[Journal | None] = ContextVar("JOURNAL", default=None)
"""The journal of the job in whose context the engine is called. The run sets it before it calls the
ASGI application; tasks that the application starts inherit it."""


TENANT: ContextVar[str] = ContextVar("TENANT", default="")
"""The tenant of the job in whose context the engine is called; set and inherited as JOURNAL is."""


class Engine(Protocol):
    """One continuous batch: a GPU, a tensor-parallel group, or a CPU."""

    kind: str
    """Name and version for people: `vllm 0.32.0`, `simulated`."""
    on_step: Callable[[], None]
    """Called in the event loop at the end of every engine step, after the step's outputs were put
    into their requests' queues. The worker may set it at any time."""

    async def start(self) -> None:
        """Load the model; return when requests can be answered."""

    @property
    def capacity(self) -> Capacity:
        """The engine's limits; only after `start`."""

    def load(self) -> Load:
        """The load now. Cheap enough to call before every claim."""

    @property
    def dead(self) -> bool:
        """Whether the engine is broken for good; the process must then end."""

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer one HTTP request as vLLM's own application does.

        Every delta goes to the `Journal` in `JOURNAL`, if there is one, before the bytes made of it
        are sent; the bytes of plain deltas may go there too. `http.disconnect` aborts the request.

        With a past (`Journal.past`) it answers as if from the beginning: the serving layer gets the
        past's deltas once more, one by one as they were journaled, and so sends the same chunks
        again; then come new deltas. Those of the past are not journaled again.
        """

    def close(self) -> None:
        """End the engine and all of its processes."""

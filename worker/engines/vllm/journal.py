"""Journals what vLLM generates for a job, token by token, before vLLM serves it.

Token path: vLLM's output handler -> here and `chunks.py` -> `worker/core/output.py`.

`JournalledLLM` is vLLM's own AsyncLLM, which also writes each delta to the `JOURNAL` of the calling
context; an answer that is not streamed is generated in deltas too and gathered here, so that its
events can be followed while it grows. Where earlier attempts at the job have begun the answer, it
is continued (continuation.py).

With an operator's `--middleware` the text that leaves the worker is what the middleware passes on:
the journal has the tokens without their texts, and all chunks come from the application.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

from vllm.outputs import PoolingRequestOutput, RequestOutput
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.executor import Executor

from worker.engines.interface import JOURNAL, TENANT, Journal, Past, PastRefused
from worker.engines.vllm.checksums import Contexts
from worker.engines.vllm.chunks import TAP, Tap, ToChunk
from worker.engines.vllm.continuation import (
    Continuation,
    Replayed,
    Ways,
    logprobs_to_journal,
    token_ids,
    without_key,
)
from worker.engines.vllm.grammars import GrammarChecker

log = logging.getLogger("flotilla.engine")

# A beam search makes an engine call for each beam and token, and speech without a language one to
# detect it. They are not the answer's tokens, and nothing is sent before they have ended: they are
# not journaled, and made again on another worker.
_NOT_THE_ANSWER = re.compile(r"-beam-\d+$|-lang_detect$")
# vLLM numbers the calls of a request that may have several prompts, and the parts of an audio file;
# those of a batch of conversations, and those of a response with tools that vLLM itself calls, with
# an underscore. A job's own id has more digits behind its underscore.
_CALL = re.compile(
    r"^(?:cmpl|embd|pooling|classify|score|generative-scoring|decision|transcribe|translate)"
    r"-.*-(\d+)$|^(?:chatcmpl-|resp_).*_(\d{1,4})$"
)
_AT_ONCE = 8
"""So many choices enter the engine together, as in vLLM; of more, each one by itself when there is
room for it."""
_KEPT_FREE = 8
"""One slot of so many is kept for requests of one sequence."""
_MAX_PROMPT_LOGPROBS = 65_536


class TooManyLogprobs(ValueError):
    """A prompt or an answer has too many. VLLM answers a ValueError with 400."""


class Room:
    """Room in the engine for requests of several sequences: choices (`n`), prompts, beams.

    A worker claims jobs as long as the engine has free slots, and one job may have hundreds of
    sequences. All such sequences together take at most 7 of 8 slots; the others wait here, first
    come, first served, so that requests of one sequence find a slot.
    """

    def __init__(self, slots: int) -> None:
        self.size = max(1, slots - max(1, slots // _KEPT_FREE))
        self._free = asyncio.Semaphore(self.size)
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def of(self, sequences: int) -> AsyncIterator[None]:
        """Wait for room, and give it back."""
        taken = 0
        try:
            async with self._turn:
                while taken < min(sequences, self.size):
                    await self._free.acquire()
                    taken += 1
            yield
        finally:
            for _ in range(taken):
                self._free.release()


class JournalledLLM(AsyncLLM):  # type: ignore[misc]
    """An AsyncLLM that writes to the `JOURNAL` of the calling context."""

    def __init__(
        self,
        config: Any,
        ways: Ways,
        grammars: GrammarChecker | None,
        contexts: Contexts,
        *,
        cache_per_tenant: bool,
        max_logprobs_at_once: int,
        hides_texts: bool,
        stat_loggers: list[Any],
        log_stats: bool,
    ) -> None:
        """`grammars`: None: they are not tried. `cache_per_tenant`: no call uses prompts that
        another tenant's calls have left in the cache. `max_logprobs_at_once`: of an answer that is
        not streamed. `hides_texts`: from the journal."""
        super().__init__(
            config,
            Executor.get_class(config),
            log_stats=log_stats,
            log_requests=False,
            stat_loggers=stat_loggers,
        )
        get_output = self.engine_core.get_output_async

        async def after_a_turn() -> Any:
            # vLLM's output handler waits only if it has none to handle, which is seconds later
            # where many log probabilities were asked for: others get a turn between two steps.
            await asyncio.sleep(0)
            return await get_output()

        self.engine_core.get_output_async = after_a_turn
        self._ways = ways
        self._grammars = grammars
        self._contexts = contexts
        self._cache_per_tenant = cache_per_tenant
        self._max_logprobs_at_once = max_logprobs_at_once
        self._hides_texts = hides_texts
        self._logprobs_of_job: WeakKeyDictionary[Journal, int] = WeakKeyDictionary()
        self._room = Room(config.scheduler_config.max_num_seqs)
        self._starting = asyncio.Lock()

    async def encode(
        self, prompt: Any, pooling_params: PoolingParams, request_id: str, **options: Any
    ) -> AsyncGenerator[PoolingRequestOutput, None]:
        """As AsyncLLM.encode (embeddings, scores); the prompt is journaled."""
        journal, call = JOURNAL.get(), _call_number(request_id)
        prompt = self._salted(prompt)
        if journal is not None:
            journal.prompt(call, len(token_ids(prompt) or ()))
        outputs = super().encode(prompt, pooling_params, request_id, **options)
        if call:
            await self._wait_for_turn()
            outputs = self._in_room(1, outputs)
        async with aclosing(outputs):
            async for output in outputs:
                if journal is not None and output.finished:
                    journal.cached(output.num_cached_tokens or 0)
                yield output

    async def _in_room(
        self, sequences: int, outputs: AsyncGenerator[Any, None]
    ) -> AsyncGenerator[Any, None]:
        async with self._room.of(sequences), aclosing(outputs):
            async for output in outputs:
                yield output

    def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        """As AsyncLLM.generate; the prompt and every delta are journaled.

        The iterator raises PastRefused, after `Journal.refuse_past`, if there is a past that can't
        be continued, GrammarRefused, and TooManyLogprobs.
        """
        params = without_key(sampling_params)
        journal, prompt = JOURNAL.get(), self._salted(prompt)
        if journal is not None and not _NOT_THE_ANSWER.search(request_id):
            return self._journalled(journal, prompt, params, request_id, options)
        outputs: AsyncGenerator[RequestOutput, None] = super().generate(
            prompt, params, request_id, **options
        )
        return outputs if journal is None else self._in_room(params.n, outputs)

    async def _add_request(
        self, request: Any, prompt: str | None, parent_req: Any, index: int, queue: Any
    ) -> None:
        tap = TAP.get()
        if tap is not None and tap.queue is None:
            tap.queue, queue = queue, tap
        await super()._add_request(request, prompt, parent_req, index, queue)

    async def _journalled(
        self,
        journal: Journal,
        prompt: Any,
        params: SamplingParams,
        request_id: str,
        options: dict[str, Any],
    ) -> AsyncGenerator[RequestOutput, None]:
        call = _call_number(request_id)
        await self._before_engine(journal, call, prompt, params, options)
        told, with_prompt_logprobs = False, params.prompt_logprobs is not None
        whole: RequestOutput | None = None
        gathers = params.output_kind is RequestOutputKind.FINAL_ONLY
        if gathers:
            params = params.clone()
            params.output_kind = RequestOutputKind.DELTA
        tap = Tap(journal, call)
        try:
            outputs = self._outputs(journal, call, tap, prompt, params, request_id, options)
            async with aclosing(outputs):
                async for output in outputs:
                    if with_prompt_logprobs:
                        with_prompt_logprobs = False
                        logprobs = logprobs_to_journal(output.prompt_logprobs or ())
                        journal.prompt(call, len(token_ids(prompt) or ()), logprobs)
                    if type(output) is not Replayed:
                        if not told:
                            told = True
                            journal.cached(output.num_cached_tokens or 0)
                        _journal_deltas(journal, call, output, with_texts=not self._hides_texts)
                    if not gathers:
                        yield output
                        continue
                    whole = self._gather(journal, whole, output)
                    if tap.queue is not None:
                        tap.to_chunk = self._gathering(journal, whole)
        except PastRefused as error:
            if journal.past(call) is not None:
                journal.refuse_past(str(error))
            raise
        if whole is not None:
            whole.outputs.sort(key=lambda part: part.index)
            yield whole

    def _gather(
        self, journal: Journal, whole: RequestOutput | None, output: RequestOutput
    ) -> RequestOutput:
        """Add a delta to the answer. Raises TooManyLogprobs."""
        if self._has_too_many(journal, output):
            raise TooManyLogprobs(
                f"The answer has more than {self._max_logprobs_at_once} log probabilities, the "
                "most in one that is not streamed. Set `stream`, or ask for less."
            )
        if whole is None:
            return output
        whole.add(output, aggregate=True)
        whole.metrics = output.metrics
        return whole

    def _gathering(self, journal: Journal, whole: RequestOutput) -> ToChunk:
        """Takes deltas that do not end the answer, and makes no chunk of them."""

        def gather(output: RequestOutput) -> str | None:
            if output.finished or output.outputs[0].logprobs is not None:
                return None
            self._gather(journal, whole, output)
            return ""

        return gather

    def _has_too_many(self, journal: Journal, output: RequestOutput) -> bool:
        # VLLM makes an object of each, all at the end, and all other requests wait meanwhile.
        new = sum(len(position) for part in output.outputs for position in part.logprobs or ())
        if new:
            self._logprobs_of_job[journal] = new = new + self._logprobs_of_job.get(journal, 0)
        return new > self._max_logprobs_at_once

    def _salted(self, prompt: Any) -> Any:
        """The prompt with its tenant's salt, and the client's own one, if it may have one."""
        tenant = TENANT.get()
        if not self._cache_per_tenant or not tenant or not isinstance(prompt, dict):
            return prompt
        own = prompt.get("cache_salt")
        return {**prompt, "cache_salt": tenant if own is None else f"{tenant}:{own}"}

    async def _before_engine(
        self,
        journal: Journal,
        call: int,
        prompt: Any,
        params: SamplingParams,
        options: dict[str, Any],
    ) -> None:
        """Check a call, and journal its context and prompt before the engine gets it."""
        n_tokens = len(token_ids(prompt) or ())
        if params.prompt_logprobs is not None:
            self._check_prompt_logprobs(params.prompt_logprobs, n_tokens)
        if self._grammars is not None and params.structured_outputs is not None:
            await self._grammars.check(params.structured_outputs)
        adapter = options.get("lora_request")
        journal.context(call, await self._contexts.of(prompt, adapter))
        if params.prompt_logprobs is None:
            journal.prompt(call, n_tokens)
        if call:
            await self._wait_for_turn()

    def _check_prompt_logprobs(self, alternatives: int, tokens: int) -> None:
        # vLLM makes an object of each on the event loop, and all other requests wait.
        each = self.model_config.get_vocab_size() if alternatives < 0 else alternatives + 1
        if tokens * each > _MAX_PROMPT_LOGPROBS:
            raise TooManyLogprobs(
                f"`prompt_logprobs` asks for {tokens} * {each} log probabilities; at most "
                f"{_MAX_PROMPT_LOGPROBS} are allowed in one request. Ask for fewer alternatives, "
                "or send a shorter prompt."
            )

    async def _wait_for_turn(self) -> None:
        # All prompts of a request start at once. In one turn of the event loop, a thousand of them
        # would block it for a second, and the tokens of all other requests with it.
        async with self._starting:
            await asyncio.sleep(0)

    def _outputs(
        self,
        journal: Journal,
        call: int,
        tap: Tap,
        prompt: Any,
        params: SamplingParams,
        request_id: str,
        options: dict[str, Any],
    ) -> AsyncGenerator[RequestOutput, None]:
        engine_generate, alone = super().generate, not call and params.n == 1

        def generate(
            prompt: Any, params: SamplingParams, request_id: str, **options: Any
        ) -> AsyncGenerator[RequestOutput, None]:
            outputs: AsyncGenerator[RequestOutput, None] = engine_generate(
                prompt, params, request_id, **options
            )
            return outputs if alone else self._in_room(params.n, outputs)

        TAP.set(None)
        past = journal.past(call)
        if past is None or not past.deltas:
            if self._begins_together(journal, prompt, params):
                if params.n == 1 and not self._hides_texts:
                    TAP.set(tap)
                return generate(prompt, params, request_id, **options)
            past = Past((), None)
        continuation = Continuation(
            self, self._ways, generate, prompt, params, request_id, past, options
        )
        if past.deltas:
            journal.continued(continuation.how, continuation.decoded_again)
        return continuation.outputs()

    def _begins_together(self, journal: Journal, prompt: Any, params: SamplingParams) -> bool:
        """Whether a call without a past is one request of the engine, as it is, not one for each
        choice."""
        try:
            self._ways.is_replayed(params, prompt)
        except PastRefused:
            journal.keep_here()
        many = params.n > _AT_ONCE and params.structured_outputs is None
        return not many and self._ways.begun(params) is params


def _journal_deltas(
    journal: Journal, call: int, output: RequestOutput, *, with_texts: bool
) -> None:
    for part in output.outputs:
        ids = tuple(part.token_ids)  # `RequestOutput.add` appends to the list later
        text = part.text if with_texts else ""
        if part.logprobs is None:
            journal.delta(call, part.index, ids, text)
        else:
            logprobs = logprobs_to_journal(part.logprobs, with_texts=with_texts)
            journal.delta(call, part.index, ids, text, logprobs)


def _call_number(request_id: str) -> int:
    """Which of the request's calls this is, counted from 0."""
    numbered = _CALL.search(request_id)
    return int(numbered[numbered.lastindex or 0]) if numbered else 0

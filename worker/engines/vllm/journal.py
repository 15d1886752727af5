"""Journals what vLLM generates for a job, token by token, before vLLM serves it.

`JournalledEngine` stands between vLLM's serving layer and its engine. It passes every call through
and journals every delta; an answer that is not streamed is generated in deltas too and gathered
here, so that its events can be followed while it grows.

Where earlier attempts at the job have begun the answer, it is continued (continuation.py).

Where a request's next chunk is known when its tokens arrive (stream_chunks.py), both go to the
journal at once, without the request's queue (collector.py) and task.

Token path: vLLM's engine -> here, or `collector.py` and `stream_chunks.py` ->
`worker/core/output.py`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from vllm.outputs import PoolingRequestOutput, RequestOutput
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import RequestOutputKind, SamplingParams

from worker.engines.interface import JOURNAL, TENANT, Journal, Past, PastRefused
from worker.engines.vllm import logprobs as vllm_logprobs
from worker.engines.vllm import resume_args
from worker.engines.vllm.collector import LATEST, Collector
from worker.engines.vllm.continuation import Continuation, Replayed, refusal
from worker.engines.vllm.gathered_answer import GatheredAnswer, LogprobCounts, TooManyLogprobs
from worker.engines.vllm.grammar_check import GrammarChecker
from worker.engines.vllm.rendered_context import Contexts
from worker.engines.vllm.stream_chunks import INTERCEPT, Interceptor
from worker.engines.vllm.wide_requests import WideEngine

log = logging.getLogger("flotilla.engine")

# A beam search makes an engine call for each beam and token, and speech without a language one to
# detect it. They are not the answer's tokens, and nothing is sent before they have ended: they are
# not journaled, and made again on another worker.
_NOT_THE_ANSWER = re.compile(r"-beam-\d+$|-lang_detect$")
# So many choices enter the engine together, as in vLLM; of more, each one by itself when there is
# room for it.
_AT_ONCE = 8
# vLLM numbers the calls of a request that may have several prompts, and the parts of an audio file;
# those of a batch of conversations, and those of a response with tools that vLLM itself calls, with
# an underscore. A job's own id has more digits behind its underscore.
_CALL = re.compile(
    r"^(?:cmpl|embd|pooling|classify|score|generative-scoring|decision|transcribe|translate)"
    r"-.*-(\d+)$|^(?:chatcmpl-|resp_).*_(\d{1,4})$"
)


_MAX_PROMPT_LOGPROBS = 65_536


class JournalledEngine:
    """An AsyncLLM that writes to the `JOURNAL` of the calling context.

    `grammars`: None: they are not tried. `slots`: sequences that the engine runs at once.
    `contexts`: None: calls are not compared with those of earlier attempts.
    `cache_per_tenant`: no call uses prompts that another tenant's calls have left in the cache.
    `max_logprobs_at_once`: of an answer that is not streamed.
    """

    def __init__(
        self,
        engine: Any,
        grammars: GrammarChecker | None = None,
        slots: int = 1024,
        contexts: Contexts | None = None,
        *,
        cache_per_tenant: bool = True,
        max_logprobs_at_once: int = 1 << 30,
    ) -> None:
        self._engine = engine
        self._wide = WideEngine(engine, slots)
        self._grammars = grammars
        self._contexts = contexts
        self._cache_per_tenant = cache_per_tenant
        self._logprobs = LogprobCounts(max_logprobs_at_once)
        self._starting = asyncio.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def encode(
        self, prompt: Any, pooling_params: PoolingParams, request_id: str, **options: Any
    ) -> AsyncIterator[PoolingRequestOutput]:
        """As AsyncLLM.encode (embeddings, scores); the prompt is journaled."""
        journal, prompt = JOURNAL.get(), self._salted(prompt)
        if journal is not None:
            call = _call_number(request_id)
            journal.prompt(call, _prompt_tokens(prompt))
            if call:
                await self._wait_for_turn()
        engine = self._wide if _call_number(request_id) else self._engine
        outputs = engine.encode(prompt, pooling_params, request_id, **options)
        try:
            async for output in outputs:
                if journal is not None and output.finished:
                    journal.cached(output.num_cached_tokens or 0)
                yield output
        finally:
            await outputs.aclose()

    def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncIterator[RequestOutput]:
        """As AsyncLLM.generate; the prompt and every delta are journaled.

        The iterator raises PastRefused, after `Journal.refuse_past`, if there is a past that can't
        be continued, GrammarRefused, and TooManyLogprobs.
        """
        sampling_params = resume_args.without(sampling_params)
        journal, prompt = JOURNAL.get(), self._salted(prompt)
        aside = _NOT_THE_ANSWER.search(request_id)
        if journal is None or aside:
            engine = self._wide if aside else self._engine
            outputs: AsyncIterator[RequestOutput] = engine.generate(
                prompt, sampling_params, request_id, **options
            )
            return outputs
        return self._journalled(journal, prompt, sampling_params, request_id, options)

    async def _journalled(
        self,
        journal: Journal,
        prompt: Any,
        sampling_params: SamplingParams,
        request_id: str,
        options: dict[str, Any],
    ) -> AsyncIterator[RequestOutput]:
        call = _call_number(request_id)
        await self._before_engine(journal, call, prompt, sampling_params, options)
        with_prompt_logprobs = sampling_params.prompt_logprobs is not None
        gathered: GatheredAnswer | None = None
        if sampling_params.output_kind is RequestOutputKind.FINAL_ONLY:
            sampling_params = sampling_params.clone()
            sampling_params.output_kind = RequestOutputKind.DELTA
            gathered = GatheredAnswer(journal, self._logprobs)
        collector: Collector | None = None
        cached_told = False
        outputs = self._outputs(journal, call, prompt, sampling_params, request_id, options)
        LATEST.set(None)
        try:
            async for output in outputs:
                if with_prompt_logprobs:
                    with_prompt_logprobs = False
                    logprobs = vllm_logprobs.to_journal(output.prompt_logprobs or ())
                    journal.prompt(call, _prompt_tokens(prompt), logprobs)
                if type(output) is Replayed:
                    intercept = None
                else:
                    if not cached_told:
                        cached_told = True
                        journal.cached(output.num_cached_tokens or 0)
                    _journal_deltas(journal, call, output)
                    collector = collector or LATEST.get()
                    intercept = partial(_intercept, collector, journal, call)
                if gathered is None:
                    INTERCEPT.set(intercept)
                    yield output
                    continue
                gathered.add(output)
                if intercept is not None:
                    intercept(gathered.add_unfinished)
        except PastRefused as error:
            journal.refuse_past(str(error))
            raise
        finally:
            # Closing the inner generator aborts the request now, not when it is collected.
            await outputs.aclose()
        if gathered is not None and gathered.output is not None:
            gathered.output.outputs.sort(key=lambda part: part.index)
            yield gathered.output

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
        if params.prompt_logprobs is not None:
            self._check_prompt_logprobs(params.prompt_logprobs, _prompt_tokens(prompt))
        if self._grammars is not None and params.structured_outputs is not None:
            await self._grammars.check(params.structured_outputs)
        if self._contexts is not None:
            adapter = options.get("lora_request")
            journal.context(call, await self._contexts.of(prompt, adapter))
        if params.prompt_logprobs is None:
            journal.prompt(call, _prompt_tokens(prompt))
        if call:
            await self._wait_for_turn()

    def _check_prompt_logprobs(self, alternatives: int, tokens: int) -> None:
        # vLLM makes an object of each on the event loop, and all other requests wait.
        each = self._engine.model_config.get_vocab_size() if alternatives < 0 else alternatives + 1
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
        prompt: Any,
        params: SamplingParams,
        request_id: str,
        options: dict[str, Any],
    ) -> Any:
        past = journal.past(call)
        engine = self._wide if call or params.n > 1 else self._engine
        if past is None or not past.deltas:
            if refusal(self._engine.model_config, params):
                journal.keep_here()
            elif params.n > _AT_ONCE and params.structured_outputs is None:
                nothing = Past((), None)
                choices = Continuation(engine, prompt, params, request_id, nothing, options)
                return choices.outputs()
            return engine.generate(prompt, params, request_id, **options)
        try:
            continuation = Continuation(engine, prompt, params, request_id, past, options)
        except PastRefused as error:
            journal.refuse_past(str(error))
            raise
        journal.continued(continuation.how, continuation.decoded_again)
        return continuation.outputs()


def _journal_deltas(journal: Journal, call: int, output: RequestOutput) -> None:
    for part in output.outputs:
        ids = tuple(part.token_ids)  # `RequestOutput.add` appends to the list later
        if part.logprobs is None:
            journal.delta(call, part.index, ids, part.text)
        else:
            logprobs = vllm_logprobs.to_journal(part.logprobs)
            journal.delta(call, part.index, ids, part.text, logprobs)


def _intercept(
    collector: Collector | None, journal: Journal, call: int, to_chunk: Interceptor
) -> None:
    """Have `to_chunk` handle the collector's next outputs, up to the first that it declines."""
    if collector is None:
        return

    def handle(output: Any) -> bool:
        if isinstance(output, Exception):
            return False
        try:
            chunk = to_chunk(output)
        except Exception:  # the caller is vLLM's output handler, which serves all requests
            log.exception("an output was not intercepted")
            return False
        if chunk is None:
            return False
        _journal_deltas(journal, call, output)
        if chunk:
            journal.chunk(chunk.encode())
        return True

    collector.interceptor = handle


def _call_number(request_id: str) -> int:
    """Which of the request's calls this is, counted from 0."""
    numbered = _CALL.search(request_id)
    return int(numbered[numbered.lastindex or 0]) if numbered else 0


def _prompt_tokens(prompt: Any) -> int:
    """Tokens of a rendered prompt; 0 where it has none (prompt embeddings). Of a model with an
    encoder those of the decoder's prompt."""
    if isinstance(prompt, dict):
        prompt = prompt.get("decoder_prompt", prompt)
    ids = prompt.get("prompt_token_ids") if isinstance(prompt, dict) else None
    return len(ids or ())

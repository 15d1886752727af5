"""Continues an engine call that earlier attempts at the job have begun.

vLLM's serving layer gets the outputs of the past once more, made of the journal, one for each
delta, and so makes the same chunks again; then it gets the engine's new outputs. The last delta
waits until it is known whether the answer had ended with it.

The engine's outputs for a continued choice begin with tokens of its past: all of them (forced
replay), or the last one with the text of all (prefill resume). `Seam` drops those and passes on
what follows. An output may lie across the seam, because vLLM merges outputs that wait for a reader:
it is cut by tokens and by text.

The engine gets one request per choice (`n`): each has a past of its own. vLLM itself divides a
request with `n` like that, and gives choice i the seed `seed + i`.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import SamplingParams

from shared.platform.tasks import end
from worker.engines.interface import Generated, Past, PastRefused
from worker.engines.vllm import forced_replay, prefill_resume
from worker.engines.vllm import logprobs as vllm_logprobs
from worker.engines.vllm.resume_args import FORCED, PREFILL

# After so many outputs of the past other requests get the event loop.
_BURST = 32


class Replayed(RequestOutput):  # type: ignore[misc]
    """An output that was made of a journaled delta."""


class Seam:
    """The past of the choice `index`, of whose tokens the engine repeats the last `repeated`."""

    def __init__(
        self,
        index: int,
        deltas: Sequence[Generated],
        *,
        repeated: int,
        prompt_logprobs: Any = None,
        flat_logprobs: bool = False,
    ) -> None:
        tokens = [token for delta in deltas for token in delta.token_ids]
        self.passed = not tokens
        """Whether all that follows is new."""
        self._index = index
        self._deltas = deltas
        self._text = "".join(delta.text for delta in deltas)
        self._prompt_logprobs = prompt_logprobs
        self._flat = flat_logprobs
        self._awaited = tokens[-repeated:]
        self._seen_text = ""
        self._logprob = 0.0

    def past(self, like: RequestOutput) -> list[RequestOutput]:
        """Outputs of all deltas but the last, which may be the one with the finish reason."""
        deltas = self._deltas if self.passed else self._deltas[:-1]
        outputs = [self._replayed(like, delta) for delta in deltas]
        if self._deltas and self._prompt_logprobs is not None:
            # vLLM gives them with the first output, and an empty list with the others.
            for output in outputs:
                output.prompt_logprobs = []
            if outputs:
                outputs[0].prompt_logprobs = self._prompt_logprobs
        return outputs

    def feed(self, output: RequestOutput) -> list[RequestOutput]:
        """What becomes of an output of the engine: `Replayed` ones, and new ones."""
        (part,) = output.outputs
        part.index = self._index
        if self.passed:
            return [output]
        repeated = min(len(self._awaited), len(part.token_ids))
        same = list(part.token_ids[:repeated]) == self._awaited[:repeated]
        del self._awaited[:repeated]
        self._seen_text += part.text
        if self._awaited:
            same &= part.finish_reason is None and self._text.startswith(self._seen_text)
        else:
            self.passed = same = same and self._seen_text.startswith(self._text)
        if not same:
            raise PastRefused("the engine did not repeat what the answer has so far.")
        if self._awaited:
            return []
        return self._cut(output, part, repeated)

    def _cut(self, output: RequestOutput, part: CompletionOutput, repeated: int) -> list[Any]:
        last = self._replayed(output, self._deltas[-1])
        if len(self._deltas) == 1:
            last.prompt_logprobs = self._prompt_logprobs
        elif self._prompt_logprobs is not None:
            last.prompt_logprobs = []
        text = self._seen_text[len(self._text) :]
        part.token_ids = part.token_ids[repeated:]
        if not part.token_ids:
            # The answer ended with the past: then the finish belongs to the last delta's chunk.
            (own,) = last.outputs
            own.finish_reason, own.stop_reason = part.finish_reason, part.stop_reason
            own.text += text
            last.finished = output.finished
            return [last]
        part.text = text
        if part.logprobs is not None:
            part.logprobs = part.logprobs[repeated:]
        if self._prompt_logprobs is not None:
            output.prompt_logprobs = []
        return [last, output]

    def _replayed(self, like: RequestOutput, delta: Generated) -> RequestOutput:
        output = copy.copy(like)
        output.__class__ = Replayed
        logprobs = None
        if delta.logprobs is not None:
            self._logprob += vllm_logprobs.total(delta.logprobs)
            logprobs = vllm_logprobs.from_journal(delta.logprobs, flat=self._flat)
        output.outputs = [
            CompletionOutput(
                index=self._index,
                text=delta.text,
                token_ids=list(delta.token_ids),
                cumulative_logprob=None if logprobs is None else self._logprob,
                logprobs=logprobs,
            )
        ]
        output.finished = False
        return output


class Continuation:
    """One call with a past, on an AsyncLLM. Raises PastRefused if it can't be continued."""

    def __init__(
        self,
        engine: Any,
        prompt: Any,
        params: SamplingParams,
        request_id: str,
        past: Past,
        options: dict[str, Any],
    ) -> None:
        self._engine = engine
        self._prompt = prompt
        self._params = params
        self._request_id = request_id
        self._past = past
        self._options = options
        self._by_prefill = prefill_resume.usable()
        if reason := refusal(engine.model_config, params):
            raise PastRefused(reason)

    @property
    def how(self) -> str:
        """See `Journal.continued`."""
        return "prefill" if self._by_prefill else "replay"

    @property
    def decoded_again(self) -> int:
        """See `Journal.continued`."""
        tokens = sum(len(delta.token_ids) for delta in self._past.deltas)
        return 0 if self._by_prefill else tokens

    async def outputs(self) -> AsyncGenerator[RequestOutput, None]:
        """The past's outputs, as `Replayed`, and then new ones."""
        n = self._params.n
        if n == 1:  # in this task and context, so that collector.py can intercept the new ones
            async with aclosing(self._choice(0)) as outputs:
                async for output in outputs:
                    yield output
            return
        unfinished = n
        async with aclosing(_merged([self._choice(index) for index in range(n)])) as outputs:
            async for output in outputs:
                unfinished -= output.outputs[0].finish_reason is not None
                output.finished = not unfinished
                yield output

    async def _choice(self, index: int) -> AsyncGenerator[RequestOutput, None]:
        deltas = [delta for delta in self._past.deltas if delta.choice == index]
        tokens = [token for delta in deltas for token in delta.token_ids]
        params = self._params_of(index, deltas, tokens)
        journaled, flat = self._past.prompt_logprobs, self._params.flat_logprobs
        seam = Seam(
            index,
            deltas,
            repeated=1 if self._by_prefill else len(tokens),
            prompt_logprobs=journaled and vllm_logprobs.from_journal(journaled, flat=flat),
            flat_logprobs=flat,
        )
        replayed = False
        generating = self._engine.generate(self._prompt, params, self._request_id, **self._options)
        async with aclosing(generating) as outputs:
            async for output in outputs:
                if not replayed:
                    replayed = True
                    for number, past in enumerate(seam.past(output)):
                        yield past
                        if number % _BURST == _BURST - 1:
                            await asyncio.sleep(0)
                for each in seam.feed(output):
                    yield each

    def _params_of(self, index: int, deltas: list[Generated], tokens: list[int]) -> SamplingParams:
        params = self._params.clone()
        params.n = 1
        if params.seed is not None:
            params.seed += index
        if not tokens:
            return params
        known: dict[str, Any] = {FORCED: tokens}
        if self._by_prefill:
            logprobs = [vllm_logprobs.total(delta.logprobs) for delta in deltas if delta.logprobs]
            known = {
                PREFILL: {
                    "tokens": tokens,
                    "logprob": sum(logprobs),
                    "max_model_len": self._engine.model_config.max_model_len,
                }
            }
            params.prompt_logprobs = None  # they are in the journal
        params.extra_args = {**(params.extra_args or {}), **known}
        return params


def refusal(model: Any, params: SamplingParams) -> str:
    """Why a call with these parameters can't be continued, or an empty string."""
    if not (prefill_resume.usable() or forced_replay.installed(model)):
        return "this engine takes no custom logits processors."
    return _not_journaled(model, params)


def _not_journaled(model: Any, params: SamplingParams) -> str:
    """Why the journal is not enough for this request, or an empty string."""
    if getattr(model, "return_sampling_mask", False):
        return "sampling masks are not in the job's log."
    if getattr(model, "enable_return_routed_experts", False):
        return "routed experts are not in the job's log."
    if getattr(params, "prompt_logprob_token_ids", None) is not None:
        return "the fixed tokens' prompt logprobs are not in the job's log."
    return ""


async def _merged(sources: list[AsyncGenerator[Any, None]]) -> AsyncGenerator[Any, None]:
    """The items of all sources as they come; the first error of one of them."""
    queue: asyncio.Queue[tuple[Any, BaseException | None]] = asyncio.Queue()

    async def read(source: Any) -> None:
        error: BaseException | None = None
        try:
            async with aclosing(source):
                async for item in source:
                    queue.put_nowait((item, None))
        except Exception as raised:
            error = raised
        queue.put_nowait((None, error))

    tasks = [asyncio.create_task(read(source)) for source in sources]
    reading = len(tasks)
    try:
        while reading:
            item, error = await queue.get()
            if error is not None:
                raise error
            if item is None:
                reading -= 1
            else:
                yield item
    finally:
        await end(tasks)

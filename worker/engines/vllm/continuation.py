"""Continues an engine call that earlier attempts at the job have begun.

vLLM's serving layer gets the outputs of the past once more, made of the journal, one for each
delta, and so makes the same chunks again; then it gets the engine's new outputs. The last delta
waits until it is known whether the answer had ended with it.

There are two ways. **By prefill**, the engine gets prompt and past as one prompt, with what is left
of `max_tokens`; what has to count the past is done by processors.py in the engine. By **forced
replay**, for the few classes that are left, the engine generates the past's tokens once more, one
step for each. Both ways texts, stop strings and characters that the seam cuts are made here, by
vLLM's own detokenizer, which gets the past first.

The engine gets one request for each choice (`n`): each has a past of its own. vLLM itself divides a
request with `n` like that, and gives choice i the seed `seed + i`.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from vllm.logprobs import Logprob, create_sample_logprobs
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import SamplingParams
from vllm.utils.async_utils import merge_async_iterators

from shared.platform.tasks import end as end_of_tasks
from worker.engines.interface import Generated, Logprobs, Past, PastRefused
from worker.engines.vllm import processors
from worker.engines.vllm.processors import KEY

log = logging.getLogger("flotilla.engine")

_BURST = 32
"""After so many outputs of the past other requests get the event loop."""
_DECODED_AT_ONCE = 256
_CHARACTER = 4
"""So many tokens may be parts of one UTF-8 character."""
_OTHER = "the engine did not repeat what the answer has so far."
Generate = Callable[..., AsyncGenerator[RequestOutput, None]]


class Replayed(RequestOutput):  # type: ignore[misc]
    """An output that was made of a journaled delta."""


def logprobs_to_journal(logprobs: Any, *, with_texts: bool = True) -> list[Any]:
    """The journal's form of vLLM's logprobs; the first position of a prompt has none."""
    return [
        [
            (token, of.logprob, of.rank, of.decoded_token if with_texts else None)
            for token, of in position.items()
        ]
        if position
        else None
        for position in logprobs
    ]


def _logprobs_from_journal(logprobs: Sequence[Any], *, flat: bool) -> Any:
    """In vLLM's own form, of which it has two (`SamplingParams.flat_logprobs`)."""
    positions = create_sample_logprobs(flat)
    for position in logprobs:
        positions.append(
            {
                token: Logprob(logprob, rank, text.decode() if isinstance(text, bytes) else text)
                for token, logprob, rank, text in position
            }
            if position
            else None
        )
    return positions


def without_key(params: SamplingParams) -> SamplingParams:
    """`params`, or a copy without what clients may not set."""
    if not params.extra_args or KEY not in params.extra_args:
        return params
    cleaned = params.clone()
    cleaned.extra_args = {name: of for name, of in params.extra_args.items() if name != KEY}
    return cleaned


def token_ids(prompt: Any) -> list[int] | None:
    """The token ids of a rendered prompt, of a model with an encoder those of the decoder's; None
    if it is not of tokens alone."""
    if not isinstance(prompt, dict):
        return None
    prompt = prompt.get("decoder_prompt") or prompt
    return None if "prompt_embeds" in prompt else prompt.get("prompt_token_ids")


def _with_tokens(prompt: dict[str, Any], tokens: list[int]) -> dict[str, Any]:
    if own := prompt.get("decoder_prompt"):
        return {**prompt, "decoder_prompt": _with_tokens(own, tokens)}
    # Its text, if it has one, would be another one now.
    return {**prompt, "prompt_token_ids": [*prompt["prompt_token_ids"], *tokens]}


class Ways:
    """How the answers of one engine can be continued."""

    def __init__(self, config: Any, *, on_cpu: bool) -> None:
        """Adds the logits processors to vLLM's configuration, before the engine is made."""
        model = config.model_config
        self._config = config
        self._v1 = not getattr(config, "use_v2_model_runner", False)
        self._on_cpu = on_cpu
        names = ("Continued", "ContinuedSeed") if self._v1 else ("ContinuedV2",)
        self._takes_processors = (
            config.speculative_config is None
            and model.runner_type != "pooling"
            and (self._v1 or processors.RUNNER_V2_TAKES_ANY)
        )
        if self._takes_processors:
            own = [f"{processors.__name__}:{name}" for name in names]
            model.logits_processors = [*(model.logits_processors or []), *own]
            log.info("answers are continued with --logits-processors %s", " ".join(own))
        self._missing = processors.missing()
        if self._missing and self._takes_processors:
            log.warning("by forced replay: this vLLM lacks what a prefill needs: %s", self._missing)
        self._processed = str(model.logprobs_mode).startswith("processed")
        self._errors = Path(tempfile.mkdtemp(prefix="flotilla-engine-"))

    def close(self) -> None:
        """Remove what is left of requests that failed."""
        shutil.rmtree(self._errors, ignore_errors=True)

    def is_replayed(self, params: SamplingParams, prompt: Any) -> bool:
        """Whether a choice is continued by forced replay, not by prefill.

        Raises PastRefused if it can't be continued at all.
        """
        config = self._config.model_config
        logprobs = params.num_logprobs is not None
        parts = self._parts(params)
        replayed = (
            token_ids(prompt) is None
            or params.repetition_detection is not None
            or (params.thinking_token_budget is not None and self._v1)
            or (logprobs and params.structured_outputs is not None)
            or (logprobs and self._processed and bool(parts))
            or not parts.isdisjoint(self._missing)
        )
        reason = ""
        if (replayed or parts) and not self._takes_processors:
            reason = "this engine takes no custom logits processors."
        elif getattr(config, "return_sampling_mask", False):
            reason = "sampling masks are not in the job's log."
        elif getattr(config, "enable_return_routed_experts", False):
            reason = "routed experts are not in the job's log."
        elif getattr(params, "prompt_logprob_token_ids", None) is not None:
            reason = "the fixed tokens' prompt logprobs are not in the job's log."
        if reason:
            raise PastRefused(reason)
        return replayed

    def _parts(self, params: SamplingParams) -> set[str]:
        """What of a request has to count the past and is done by a processor."""
        found = {
            "penalties": params.presence_penalty or params.frequency_penalty,
            "bad_words": params.bad_words,
            "grammar": params.structured_outputs is not None,
            "seed": self._v1 and params.seed is not None and params.temperature > 0,
        }
        return {part for part, is_set in found.items() if is_set}

    def begun(self, params: SamplingParams) -> SamplingParams:
        """The parameters of a request without a past: on a CPU, see ContinuedSeed."""
        if not (self._on_cpu and self._takes_processors) or "seed" in self._missing:
            return params
        if "seed" not in self._parts(params) or (
            self._processed and params.num_logprobs is not None
        ):
            return params
        own = params.clone()
        own.seed = None
        need = {"seed": params.seed, "errors": self._error_file()}
        own.extra_args = {**(params.extra_args or {}), KEY: need}
        return own

    def replayed(self, params: SamplingParams, tokens: list[int]) -> SamplingParams:
        """The parameters for a forced replay of these tokens."""
        own = _without_texts(self.begun(params))
        own.extra_args = dict(own.extra_args or {})
        own.extra_args[KEY] = {**own.extra_args.get(KEY, {}), "forced": tokens}
        return own

    def prefilled(
        self, params: SamplingParams, tokens: list[int], options: dict[str, Any], tokenizer: Any
    ) -> SamplingParams:
        """The parameters of the request whose prompt ends with these tokens."""
        parts = self._parts(params)
        own = _without_texts(params)
        if own.max_tokens is not None:
            own.max_tokens -= len(tokens)
        own.min_tokens = max(0, own.min_tokens - len(tokens))
        need: dict[str, Any] = {"past": tokens, "errors": self._error_file()}
        if "penalties" in parts:
            # Model runner V1 applies all of its penalties after the processors.
            need["penalties"] = [
                float(params.presence_penalty),
                float(params.frequency_penalty),
                float(params.repetition_penalty),
            ]
            own.presence_penalty, own.frequency_penalty, own.repetition_penalty = 0.0, 0.0, 1.0
        if "bad_words" in parts:
            need["bad_words"] = True
        if "seed" in parts:
            need["seed"], own.seed = params.seed, None
        if "grammar" in parts:
            config = self._config
            own.verify(  # chooses the library
                config.model_config, None, config.structured_outputs_config, tokenizer
            )
            grammar = own.structured_outputs
            assert grammar is not None
            need["grammar"] = {
                each.name: getattr(grammar, each.name) for each in fields(grammar) if each.init
            }
            need["backend"] = grammar._backend  # noqa: SLF001
            names = ("reasoning_ended", "reasoning_parser_kwargs")
            need["reasoning"] = {name: options.get(name) for name in names}
            own.structured_outputs = None
        if parts:
            own.extra_args = {**(params.extra_args or {}), KEY: need}
        return own

    def _error_file(self) -> str:
        return str(self._errors / uuid4().hex)


def _without_texts(params: SamplingParams) -> SamplingParams:
    """A copy for an engine whose texts are made here, as are the stops that depend on them; the
    logprobs of the prompt are in the log."""
    own = params.clone()
    own.prompt_logprobs, own.stop = None, []
    # vLLM decodes the tokens of logprobs with its detokenizer only.
    own.detokenize = own.detokenize and own.num_logprobs is not None
    return own


def error_of(params: SamplingParams) -> str:
    """What a processor has told about a request; empty: it has not failed."""
    path = processors.asked(params).get("errors")
    if path is None or not Path(path).exists():
        return ""
    return Path(path).read_text()


def _keep(part: CompletionOutput, tokens: slice) -> None:
    part.token_ids = part.token_ids[tokens]
    if part.logprobs is not None:
        part.logprobs = part.logprobs[tokens]


def _detokenizer(tokenizer: Any, prompt: list[int], params: SamplingParams) -> Any:
    """The one that vLLM has for the answer to these tokens."""
    from vllm.v1.engine.detokenizer import IncrementalDetokenizer

    like: Any = SimpleNamespace(
        request_id="", sampling_params=params, prompt_token_ids=prompt, prompt_embeds=None
    )
    return IncrementalDetokenizer.from_new_request(tokenizer, like)


async def _decoded(
    deltas: list[Generated], end: CompletionOutput | None, text: Any, tokenizer: Any
) -> tuple[list[Generated], CompletionOutput | None]:
    """Decode the past with `text`, the answer's detokenizer. Returns the deltas, with their texts
    where the log has none (journal.py), and `end`, what ends the answer if the past does, with the
    text that the past lacks; it may be a stop string. Raises PastRefused if it has another text.
    """
    stop, texts = None, list[str]()
    for number, delta in enumerate(deltas, 1):
        if stop is not None:
            raise PastRefused(_OTHER)
        excluded = end is not None and end.finish_reason == "stop" and number == len(deltas)
        stop = text.update(list(delta.token_ids), excluded)
        texts.append(text.get_next_output_text(False, True))
        if number % _DECODED_AT_ONCE == 0:
            await asyncio.sleep(0)
    if stop is not None:
        end = _ending("stop", stop)
    if any(delta.text for delta in deltas):
        seen, in_log = "".join(texts), "".join(delta.text for delta in deltas)
        if end is not None:
            seen += text.get_next_output_text(True, True)
            end.text = seen[len(in_log) :]
        if not seen.startswith(in_log) or (end is None and seen != in_log):
            raise PastRefused(_OTHER)
        return deltas, end
    if end is not None:
        end.text = text.get_next_output_text(True, True)
    logprobs = _logprobs_with_texts([delta.logprobs for delta in deltas], tokenizer)
    return [
        delta._replace(text=own, logprobs=of)
        for delta, own, of in zip(deltas, texts, logprobs, strict=True)
    ], end


def _logprobs_with_texts(all_logprobs: list[Logprobs | None], tokenizer: Any) -> list[Any]:
    """Logprobs of the deltas of a past, with the tokens' texts as vLLM makes them."""
    from vllm.tokenizers.detokenizer_utils import convert_ids_list_to_tokens
    from vllm.v1.engine.logprobs import LogprobsProcessor

    if tokenizer is None:
        return all_logprobs
    processor, before = LogprobsProcessor(tokenizer, None, None, None, None, None), list[int]()

    def with_texts(position: Sequence[Any]) -> Sequence[Any]:
        ids = [token for token, *_ in position]
        texts = convert_ids_list_to_tokens(tokenizer, ids)
        processor._verify_tokens(texts, ids, before[-_CHARACTER:])  # noqa: SLF001
        before.append(ids[0])
        return [(*entry[:3], text) for entry, text in zip(position, texts, strict=True)]

    return [logprobs and [*map(with_texts, logprobs)] for logprobs in all_logprobs]


class _NewOutputs:
    """Makes the engine's outputs those behind the past. Their texts are made here, by vLLM's own
    detokenizer; an output may lie across the seam, because vLLM merges outputs that wait for a
    reader."""

    def __init__(self, prompt: list[int], text: Any, repeated: list[int]) -> None:
        """`text`: a detokenizer that has decoded the past. `repeated`: the past's tokens where the
        engine generates them once more; none behind a prefill."""
        self._prompt = prompt
        self._text = text
        self._is_prefilled = not repeated
        self._awaited = list(repeated)

    def take(self, output: RequestOutput, past: CompletionOutput) -> bool:
        """Make an output one behind `past`; False if it is the past's alone. Raises PastRefused."""
        (part,) = output.outputs
        if self._awaited:
            repeated = list(part.token_ids[: len(self._awaited)])
            awaited, self._awaited = self._awaited, self._awaited[len(repeated) :]
            ends_early = self._awaited and part.finish_reason is not None
            if repeated != awaited[: len(repeated)] or ends_early:
                raise PastRefused(_OTHER)
            _keep(part, slice(len(repeated), None))
            if not part.token_ids and part.finish_reason is None:
                return False
        before = self._text.num_output_tokens()
        stop = self._text.update(list(part.token_ids), part.finish_reason == "stop")
        if stop is not None:
            part.finish_reason, part.stop_reason = "stop", stop
            _keep(part, slice(self._text.num_output_tokens() - before))
        part.text = self._text.get_next_output_text(part.finish_reason is not None, True)
        if self._is_prefilled:
            if part.cumulative_logprob is not None:
                part.cumulative_logprob += past.cumulative_logprob or 0.0
            output.prompt_token_ids = self._prompt
            output.num_cached_tokens = min(output.num_cached_tokens or 0, len(self._prompt))
        return True


def _ending(finish_reason: str, stop_reason: int | str | None = None) -> CompletionOutput:
    """The end of an answer, without a token."""
    return CompletionOutput(0, "", [], None, None, None, finish_reason, stop_reason)


class Continuation:
    """One call with a past. Raises PastRefused if it can't be continued."""

    def __init__(
        self,
        engine: Any,
        ways: Ways,
        generate: Generate,
        prompt: Any,
        params: SamplingParams,
        request_id: str,
        past: Past,
        options: dict[str, Any],
    ) -> None:
        """`engine`: an AsyncLLM. `generate`: its method, which may wait for room."""
        self._engine = engine
        self._ways = ways
        self._generate = generate
        self._prompt = prompt
        self._params = params
        self._request_id = request_id
        self._past = past
        self._options = options
        self._of_choice: list[list[Generated]] = [[] for _ in range(params.n)]
        for delta in past.deltas:
            self._of_choice[delta.choice].append(delta)
        self._replayed = [
            bool(tokens) and (ways.is_replayed(params, prompt) or self._cuts_character(tokens))
            for tokens in map(_tokens, self._of_choice)
        ]

    def _cuts_character(self, tokens: list[int]) -> bool:
        """Whether logprobs of the next token depend on the past: it ends inside a character."""
        tokenizer = self._engine.tokenizer
        if self._params.num_logprobs is None or tokenizer is None:
            return False
        return str(tokenizer.decode(tokens[-_CHARACTER:])).endswith("\ufffd")

    @property
    def how(self) -> str:
        """See `Journal.continued`."""
        return "replay" if any(self._replayed) else "prefill"

    @property
    def decoded_again(self) -> int:
        """See `Journal.continued`."""
        pairs = zip(self._of_choice, self._replayed, strict=True)
        return sum(len(_tokens(deltas)) for deltas, replayed in pairs if replayed)

    async def outputs(self) -> AsyncGenerator[RequestOutput, None]:
        """The past's outputs, as `Replayed`, and then new ones."""
        unfinished = self._params.n
        choices = map(self._choice, range(unfinished))
        async with aclosing(merge_async_iterators(*choices)) as outputs:
            async for _, output in outputs:
                unfinished -= output.outputs[0].finish_reason is not None
                output.finished = not unfinished
                yield output

    async def _choice(self, index: int) -> AsyncGenerator[RequestOutput, None]:
        params = self._params.clone()
        params.n = 1
        if params.seed is not None:
            params.seed += index
        deltas = self._of_choice[index]
        if not deltas:
            begun = self._ways.begun(params)
            async with aclosing(self._engine_outputs(self._prompt, begun)) as outputs:
                async for output in outputs:
                    output.outputs[0].index = index
                    yield output
            return
        tokens, prompt, tokenizer = _tokens(deltas), self._prompt, self._engine.tokenizer
        ids = token_ids(prompt) or []
        shown = tokenizer if params.detokenize else None
        decoder = _detokenizer(shown, ids, params)
        deltas, end = await _decoded(deltas, self._end(params, ids, tokens), decoder, shown)
        if self._replayed[index]:
            own, repeated = self._ways.replayed(params, tokens), tokens
        else:
            own, repeated = self._ways.prefilled(params, tokens, self._options, tokenizer), []
            prompt = _with_tokens(prompt, tokens)
        new = _NewOutputs(ids, decoder, repeated)
        generating = self._engine_outputs(prompt, own)
        # The engine computes while the serving layer makes the chunks of the past again.
        first = None if end is not None else asyncio.ensure_future(anext(generating))
        try:
            last: Replayed | None = None
            async for past in self._past_outputs(index, deltas):
                if last is not None:
                    yield last
                last = past
            assert last is not None
            (of_past,) = last.outputs
            output = None if first is None else await first
            while output is not None:
                (part,) = output.outputs
                part.index = index
                if new.take(output, of_past):
                    if last is not None and not part.token_ids and part.finish_reason is not None:
                        end = part
                        break
                    if last is not None:
                        yield last
                        last = None
                    if self._past.prompt_logprobs is not None:
                        output.prompt_logprobs = []
                    yield output
                    if part.finish_reason is not None:
                        return
                output = await anext(generating, None)
            if last is not None and end is not None:  # the answer had ended with the past
                of_past.finish_reason, of_past.stop_reason = end.finish_reason, end.stop_reason
                of_past.text += end.text
                yield last
        finally:
            if first is not None:
                await end_of_tasks([first])
            await generating.aclose()

    async def _engine_outputs(
        self, prompt: Any, params: SamplingParams
    ) -> AsyncGenerator[RequestOutput, None]:
        """Raises PastRefused once a processor has failed."""
        generating = self._generate(prompt, params, self._request_id, **self._options)
        async with aclosing(generating) as outputs:
            async for output in outputs:
                if error := error_of(params):
                    raise PastRefused(error)
                yield output

    def _end(
        self, params: SamplingParams, prompt: list[int], tokens: list[int]
    ) -> CompletionOutput | None:
        """What ends the answer if the past does: an attempt can end after its last token and before
        it wrote so."""
        engine, own = self._engine, params.clone()
        own.update_from_generation_config(
            engine.input_processor.generation_config_fields, engine.renderer.get_eos_token_id()
        )
        if tokens[-1] == own.eos_token_id:
            return _ending("stop")
        if tokens[-1] in (own.stop_token_ids or ()):
            return _ending("stop", tokens[-1])
        most = engine.model_config.max_model_len - len(prompt)
        if params.max_tokens is not None:
            most = min(most, params.max_tokens)
        return _ending("length") if len(tokens) >= most else None

    async def _past_outputs(
        self, index: int, deltas: list[Generated]
    ) -> AsyncGenerator[Replayed, None]:
        journaled, flat, logprob = self._past.prompt_logprobs, self._params.flat_logprobs, 0.0
        for number, delta in enumerate(deltas):
            output = self._output(index, delta)
            (part,) = output.outputs
            if delta.logprobs is not None:
                logprob += sum(position[0][1] for position in delta.logprobs)
                part.cumulative_logprob = logprob
                part.logprobs = _logprobs_from_journal(delta.logprobs, flat=flat)
            if journaled is not None:
                # vLLM gives them with the first output, and an empty list with the others.
                output.prompt_logprobs = (
                    [] if number else _logprobs_from_journal(journaled, flat=flat)
                )
            yield output
            if number % _BURST == _BURST - 1:
                await asyncio.sleep(0)

    def _output(self, index: int, delta: Generated) -> Replayed:
        prompt = self._prompt if isinstance(self._prompt, dict) else {}
        text = (prompt.get("decoder_prompt") or prompt).get("prompt")
        part = CompletionOutput(index, delta.text, list(delta.token_ids), None, None)
        return Replayed(
            self._request_id,
            text or self._options.get("prompt_text"),
            token_ids(prompt),
            None,
            [part],
            finished=False,
            lora_request=self._options.get("lora_request"),
            num_cached_tokens=0,
        )


def _tokens(deltas: Sequence[Generated]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]

"""Plain streams of vLLM, without an object per token.

vLLM's serving layer builds, validates and serializes three pydantic objects for every chunk of a
stream: the largest cost per token in a worker. In a plain stream (one choice; no logprobs, tools,
token ids, running usage) the chunks between the first and the last differ in their text only. So
vLLM's own generator sees the first output and the last one, and is asked in between what it makes
of a text that we know; all other chunks are put together from its answer. The role, the finish
reason, the usage, errors and [DONE] stay its own words.

Nor need the request's task be woken for them: where there is a `TAP`, such chunks are made where
the engine's outputs come.
"""

from __future__ import annotations

import copy
import inspect
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from dataclasses import replace
from json.encoder import encode_basestring as quoted
from typing import Any

from shared.platform.fast_paths import FastPath, parameters_differ

log = logging.getLogger("flotilla.engine")

TEMPLATES = FastPath("vLLM's stream generators")

Take = Callable[[Any], str | None]
"""From one of vLLM's results to the chunk that is made of it, empty if there is none; None if the
request's task has to see the result."""
TAP: ContextVar[Callable[[Take], None] | None] = ContextVar("TAP", default=None)
"""Has the request's next results taken so, up to the first that is not. Set once there is one."""

# vLLM's stream generators, with the parameters that they have from 0.24 to 0.33.
_KNOWN = {
    "openai_serving_chat.chat_completion_stream_generator": (
        "request result_generator request_id model_name conversation tokenizer request_metadata "
        "chat_template_kwargs mm_token_counts"
    ),
    "openai_serving_completion.completion_stream_generator": (
        "request engine_inputs result_generator request_id created_time model_name num_prompts "
        "tokenizer request_metadata"
    ),
}

# What a request may set without its chunks looking different.
_HARMLESS = (
    "messages prompt model user stream stream_options service_tier "
    "request_id session_id priority cache_salt "
    "max_tokens max_completion_tokens min_tokens stop stop_token_ids include_stop_str_in_output "
    "ignore_eos skip_special_tokens spaces_between_special_tokens stream_interval "
    "temperature top_p top_k min_p seed frequency_penalty presence_penalty repetition_penalty "
    "logit_bias allowed_token_ids bad_words response_format structured_outputs reasoning_effort "
    "truncate_prompt_tokens truncation_side add_special_tokens add_generation_prompt "
    "continue_final_message chat_template chat_template_kwargs documents"
)

# No model can say it, so the chunk that has it is the answer to our question.
_SAYING = secrets.token_hex(16)


def install(state: Any) -> None:
    """Make plain streams of vLLM's application this way, where fast paths are enabled.

    `state` is the application's.
    """
    if not TEMPLATES.enabled():
        return
    for path, parameters in _KNOWN.items():
        holder, name = path.split(".")
        serving = getattr(state, holder, None)
        if serving is None:  # the model has no such endpoint
            continue
        own: Any = getattr(serving, name, None)
        problem = parameters_differ(own, parameters) if callable(own) else "it is missing"
        if problem:
            log.warning("vLLM itself makes all chunks of %s: %s", path, problem)
        else:
            setattr(serving, name, _shortened(serving, own))


def plain(serving: Any, request: Any) -> bool:
    """All chunks of this stream but the first and the last differ in their text only.

    Whatever a request sets that is not known to be harmless makes it False.
    """
    fields, set_to = type(request).model_fields, vars(request)
    options = request.stream_options
    return (
        all(
            name in fields and set_to[name] == fields[name].default
            for name in request.model_fields_set.difference(_HARMLESS.split())
        )
        and not (options and options.continuous_usage_stats)
        and not getattr(serving, "enable_force_include_usage", True)
        and not getattr(serving, "enable_log_outputs", False)
        and _passes_text_on(getattr(serving, "parser_cls", None), request)
    )


def _passes_text_on(parser: Any, request: Any) -> bool:
    """A parser of nothing but tool calls lets text pass where no tools are offered."""
    return parser is None or (
        request.tool_choice == "none"
        and parser.parse_delta.__qualname__ == "DelegatingParser.parse_delta"
        and parser.reasoning_parser_cls is None
        and not parser.tool_parser_cls.engine_based_streaming
    )


def _shortened(serving: Any, own: Callable[..., AsyncIterator[str]]) -> Callable[..., Any]:
    signature = inspect.signature(own)

    def stream_generator(*args: Any, **kwargs: Any) -> AsyncIterator[str]:
        call = signature.bind(*args, **kwargs)
        asked = call.arguments
        if asked.get("num_prompts", 1) != 1 or not plain(serving, asked["request"]):
            return own(*args, **kwargs)

        def own_over(results: AsyncIterator[Any]) -> AsyncIterator[str]:
            asked["result_generator"] = results
            return own(*call.args, **call.kwargs)

        return _stream(own_over, asked["result_generator"])

    return stream_generator


async def _stream(
    own_over: Callable[[AsyncIterator[Any]], AsyncIterator[str]], results: AsyncIterator[Any]
) -> AsyncIterator[str]:
    """What vLLM's own generator would yield over `results`."""
    told: list[Any] = []

    async def shown() -> AsyncIterator[Any]:
        """What vLLM's own generator gets to see."""
        async for item in results:
            yield item
            if _goes_on(_output(item)):
                told.append(_question(item, _SAYING))
                break
        # It only comes back for more when the loop over the deltas below has put it here.
        for item in told:
            if isinstance(item, Exception):
                raise item
            yield item
        async for item in results:
            yield item

    chunks = own_over(shown())
    async for chunk in chunks:
        head, saying, tail = chunk.partition(quoted(_SAYING))
        if saying:
            break
        yield chunk
    else:
        return
    blanks: bool | None = None  # has a delta without text a chunk? With a parser it may have none
    untold: list[int] = []

    def take(item: Any) -> str | None:
        output = _output(item)
        if not _goes_on(output) or (not output.text and blanks is None):
            return None
        untold.extend(output.token_ids)
        return head + quoted(output.text) + tail if output.text or blanks else ""

    tap = TAP.get()
    try:
        if tap is not None:
            tap(take)
        async for item in results:
            output = _output(item)
            if not _goes_on(output):
                output.token_ids = [*untold, *output.token_ids]  # for the usage
                told.append(item)
                break
            if not output.text and blanks is None:
                told.append(_question(item, "", _SAYING))
                blanks = _SAYING not in await anext(chunks)
                if blanks:
                    await anext(chunks)
            spoken = take(item)
            if spoken:
                yield spoken
            if tap is not None:
                tap(take)
    except Exception as error:
        told.append(error)
    async for chunk in chunks:
        yield chunk


def _output(item: Any) -> Any:
    """The only choice of a result; results for completions come with the number of the prompt."""
    return (item[1] if type(item) is tuple else item).outputs[0]


def _goes_on(output: Any) -> bool:
    return output.finish_reason is None and bool(output.token_ids)


def _question(item: Any, *texts: str) -> Any:
    """A result like `item` in which the model says `texts`."""
    if type(item) is tuple:
        return item[0], _question(item[1], *texts)
    result = copy.copy(item)
    result.outputs = [replace(item.outputs[0], text=text, token_ids=()) for text in texts]
    return result

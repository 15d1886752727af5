"""Plain streams of vLLM, whose chunks are made from a template instead of objects.

Token path: `journal.py` -> here -> `worker/core/output.py`.

vLLM's serving layer builds, validates and serializes three pydantic objects for every chunk of a
stream: the largest cost per token in a worker. In a plain stream (one choice; no logprobs, tools,
token ids, running usage) the chunks between the first and the last differ in their text only. So
vLLM's own generator gets the first output and the last one, and in between one with a text that we
chose: the chunk it makes of that is the template of all others. The role, the finish reason, the
usage, errors and [DONE] are made by vLLM.

The request's task is not woken for such chunks either: its `Tap` makes them where the engine's
outputs come.
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

from worker.engines.interface import Journal

log = logging.getLogger("flotilla.engine")

ToChunk = Callable[[Any], str | None]
"""Makes the chunk of one of vLLM's outputs, empty if it has none; None: the request's task has to
handle the output."""

# vLLM's stream generators; their parameters are the same in 0.32 and 0.33.
_GENERATORS = (
    ("openai_serving_chat", "chat_completion_stream_generator"),
    ("openai_serving_completion", "completion_stream_generator"),
)

# Fields that a request may set without a change to the form of its chunks.
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

# A random text that marks the place of the text in vLLM's chunk.
_SENTINEL = secrets.token_hex(16)


class Tap:
    """Stands in front of one request's queue. While `to_chunk` is set and the queue is empty, plain
    deltas go to the journal where they come, so the request's task is not woken for them.

    What it does not handle, and all that follows, goes to the queue.
    """

    def __init__(self, journal: Journal, call: int) -> None:
        self.to_chunk: ToChunk | None = None
        self.queue: Any = None
        self._journal = journal
        self._call = call

    def put(self, output: Any) -> None:
        """As RequestOutputCollector.put."""
        if self.to_chunk is not None:
            if self.queue.output is None and self._handles(output, self.to_chunk):
                return
            self.to_chunk = None  # what follows must not overtake this one
        self.queue.put(output)

    def _handles(self, output: Any, to_chunk: ToChunk) -> bool:
        if isinstance(output, Exception):
            return False
        try:
            chunk = to_chunk(output)
        except Exception:  # the caller is vLLM's output handler, which serves all requests
            log.exception("an output was not handled at once")
            return False
        if chunk is None:
            return False
        (part,) = output.outputs
        self._journal.delta(self._call, 0, tuple(part.token_ids), part.text)
        if chunk:
            self._journal.chunk(chunk.encode())
        return True


TAP: ContextVar[Tap | None] = ContextVar("TAP", default=None)
"""The tap of the request that is given to vLLM, or read, in this context, if it has one. Its reader
sets `to_chunk` each time before it waits for the next output."""


def install(state: Any) -> None:
    """Make plain streams of vLLM's application this way. `state` is the application's."""
    for holder, name in _GENERATORS:
        serving = getattr(state, holder, None)
        if serving is not None:  # else the model has no such endpoint
            setattr(serving, name, _templated(serving, getattr(serving, name)))


def is_plain(serving: Any, request: Any) -> bool:
    """Whether all chunks of this stream but the first and the last differ in their text only.

    False if the request sets a field that is not known to be harmless.
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
        and _parser_passes_text(getattr(serving, "parser_cls", None), request)
    )


def _parser_passes_text(parser: Any, request: Any) -> bool:
    """A parser of tool calls only does not change text where no tools are offered."""
    return parser is None or (
        request.tool_choice == "none"
        and parser.parse_delta.__qualname__ == "DelegatingParser.parse_delta"
        and parser.reasoning_parser_cls is None
        and not parser.tool_parser_cls.engine_based_streaming
    )


def _templated(serving: Any, own: Callable[..., AsyncIterator[str]]) -> Callable[..., Any]:
    signature = inspect.signature(own)

    def stream_generator(*args: Any, **kwargs: Any) -> AsyncIterator[str]:
        call = signature.bind(*args, **kwargs)
        arguments = call.arguments
        if arguments.get("num_prompts", 1) != 1 or not is_plain(serving, arguments["request"]):
            return own(*args, **kwargs)

        def own_over(results: AsyncIterator[Any]) -> AsyncIterator[str]:
            arguments["result_generator"] = results
            return own(*call.args, **call.kwargs)

        return _stream(own_over, arguments["result_generator"])

    return stream_generator


async def _visible_results(results: AsyncIterator[Any], pending: list[Any]) -> AsyncIterator[Any]:
    """The results that vLLM's own generator gets."""
    async for item in results:
        yield item
        if _is_plain_delta(_output(item)):
            pending.append(_with_texts(item, _SENTINEL))
            break
    # vLLM asks for these once the loop over the deltas of `_stream` has put them here.
    for item in pending:
        if isinstance(item, Exception):
            raise item
        yield item
    async for item in results:
        yield item


async def _stream(
    own_over: Callable[[AsyncIterator[Any]], AsyncIterator[str]], results: AsyncIterator[Any]
) -> AsyncIterator[str]:
    """What vLLM's own generator would yield over `results`."""
    pending: list[Any] = []

    chunks = own_over(_visible_results(results, pending))
    async for chunk in chunks:
        head, sentinel, tail = chunk.partition(quoted(_SENTINEL))
        if sentinel:
            break
        yield chunk
    else:
        return
    # Whether vLLM makes a chunk of a delta without text: not known yet, and not with every parser.
    makes_empty_chunks: bool | None = None
    hidden_token_ids: list[int] = []

    def to_chunk(item: Any) -> str | None:
        output = _output(item)
        if not _is_plain_delta(output) or (not output.text and makes_empty_chunks is None):
            return None
        hidden_token_ids.extend(output.token_ids)
        return head + quoted(output.text) + tail if output.text or makes_empty_chunks else ""

    tap = TAP.get()
    try:
        if tap is not None:
            tap.to_chunk = to_chunk
        async for item in results:
            output = _output(item)
            if not _is_plain_delta(output):
                output.token_ids = [*hidden_token_ids, *output.token_ids]  # for the usage
                pending.append(item)
                break
            if not output.text and makes_empty_chunks is None:
                pending.append(_with_texts(item, "", _SENTINEL))
                makes_empty_chunks = _SENTINEL not in await anext(chunks)
                if makes_empty_chunks:
                    await anext(chunks)
            if made := to_chunk(item):
                yield made
            if tap is not None:
                tap.to_chunk = to_chunk
    except Exception as error:
        pending.append(error)
    async for chunk in chunks:
        yield chunk


def _output(item: Any) -> Any:
    """The only choice of a result; results for completions come with the number of the prompt."""
    return (item[1] if type(item) is tuple else item).outputs[0]


def _is_plain_delta(output: Any) -> bool:
    return output.finish_reason is None and bool(output.token_ids)


def _with_texts(item: Any, *texts: str) -> Any:
    """A result like `item`, with outputs of these texts."""
    if type(item) is tuple:
        return item[0], _with_texts(item[1], *texts)
    result = copy.copy(item)
    result.outputs = [replace(item.outputs[0], text=text, token_ids=()) for text in texts]
    return result

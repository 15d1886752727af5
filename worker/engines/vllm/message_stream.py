"""Plain streams of Anthropic's messages, whose events are made from a template (stream.py).

vLLM makes the events of a message of the chunks of a chat: it serializes each chunk, parses it and
makes an event of it. Here both of its generators together are what the template is made with.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from shared.platform.fast_paths import parameters_differ
from worker.engines.vllm.stream import TEMPLATES, Generator, by_template, is_plain

log = logging.getLogger("flotilla.engine")

_CHUNKS = (
    "request result_generator request_id model_name conversation tokenizer request_metadata "
    "chat_template_kwargs mm_token_counts"
)
_EVENTS = "generator"
"""The parameters of vLLM's generators, in 0.32."""


class _PlainChunks(NamedTuple):
    """Chunks of a chat that are not made yet."""

    make: Generator
    results: AsyncIterator[Any]


def install(state: Any) -> None:
    """Make plain streams of messages this way, where fast paths are enabled.

    `state` is that of vLLM's application.
    """
    serving = getattr(state, "anthropic_serving_messages", None)
    if serving is None or not TEMPLATES.enabled():
        return
    own_chunks: Any = getattr(serving, "chat_completion_stream_generator", None)
    own_events: Any = getattr(serving, "message_stream_converter", None)
    if not callable(own_chunks) or not callable(own_events):
        log.warning("vLLM itself makes all events of messages: a generator is missing")
        return
    problem = parameters_differ(own_chunks, _CHUNKS) or parameters_differ(own_events, _EVENTS)
    if problem:
        log.warning("vLLM itself makes all events of messages: %s", problem)
        return
    signature = inspect.signature(own_chunks)

    def chunks(*args: Any, **kwargs: Any) -> AsyncIterator[str] | _PlainChunks:
        call = signature.bind(*args, **kwargs)
        arguments = call.arguments
        if not is_plain(serving, arguments["request"], hides_usage=True):
            own: AsyncIterator[str] = own_chunks(*args, **kwargs)
            return own

        def make(results: AsyncIterator[Any]) -> AsyncIterator[str]:
            arguments["result_generator"] = results
            made: AsyncIterator[str] = own_chunks(*call.args, **call.kwargs)
            return made

        return _PlainChunks(make, arguments["result_generator"])

    def events(generator: Any) -> AsyncIterator[str]:
        if type(generator) is not _PlainChunks:
            own: AsyncIterator[str] = own_events(generator)
            return own
        return by_template(lambda results: own_events(generator.make(results)), generator.results)

    serving.chat_completion_stream_generator = chunks
    serving.message_stream_converter = events

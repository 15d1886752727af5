"""Plain streams by template are, chunk by chunk, what vLLM's own generators make.

Both get the same outputs here, which no engine has made, so none are merged in between. The serving
layer is that of the vLLM of this test run.
"""

from __future__ import annotations

import contextvars
import copy
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness.asgi_client import Recorder
from worker.engines.vllm import chunks as vllm_chunks
from worker.engines.vllm.engine import VllmEngine

pytestmark = pytest.mark.vllm

CHAT, COMPLETION = "openai_serving_chat", "openai_serving_completion"
NAMES = dict(vllm_chunks._GENERATORS)
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}

BOTH_PLAIN: list[dict[str, Any]] = [
    {},
    {"stream_options": {"include_usage": True}},
    {"stream_options": {"include_usage": False, "continuous_usage_stats": False}},
    {"stop": ["x"], "max_tokens": 9, "seed": 1, "temperature": 0.5, "n": 1, "echo": False},
    {"response_format": {"type": "json_object"}, "return_token_ids": None, "logprobs": None},
    {"stop_token_ids": [7], "logit_bias": {"5": 1.0}, "skip_special_tokens": False},
]
PLAIN = {
    CHAT: [
        *BOTH_PLAIN[:4],
        {"logprobs": False, "top_logprobs": 0, "tools": None, "tool_choice": "none"},
        {"add_generation_prompt": False, "max_completion_tokens": 5, "chat_template_kwargs": {}},
    ],
    COMPLETION: BOTH_PLAIN,
}
BOTH_NOT_PLAIN: list[dict[str, Any]] = [
    {"n": 2},
    {"echo": True},
    {"return_token_ids": True},
    {"prompt_logprobs": 0},
    {"use_beam_search": True},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"vllm_xargs": {"new": 1}},
    {"something_unknown": True},
]
NOT_PLAIN = {
    CHAT: [
        *BOTH_NOT_PLAIN,
        {"logprobs": True},
        {"return_prompt_text": True},
        {"include_reasoning": False},
        {"tool_choice": None},
        {"tools": [TOOL]},
        {"tools": [TOOL], "tool_choice": "none"},
        {"tools": [TOOL], "tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "look"}}},
    ],
    COMPLETION: [*BOTH_NOT_PLAIN, {"logprobs": 0}, {"suffix": "."}],
}
SERVINGS = {
    CHAT: [
        {},
        {"parser_cls": None},
        {"parser_cls": None, "enable_prompt_tokens_details": True},
        {"enable_per_request_metrics": True, "system_fingerprint": None},
    ],
    COMPLETION: [
        {},
        {"enable_prompt_tokens_details": True, "enable_per_request_metrics": True},
        {"system_fingerprint": None},
    ],
}


@pytest.fixture(scope="module")
def state(vllm_engine: VllmEngine) -> Iterator[Any]:
    """The state of vLLM's application, with a constant clock."""
    from vllm.entrypoints.openai.chat_completion import serving

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving, "time", SimpleNamespace(time=lambda: 1_700_000_000.5))
        yield vllm_engine._app.state  # type: ignore[union-attr]


class Pair:
    """vLLM's own generator, and ours in its place, of one serving object with changes made."""

    def __init__(self, state: Any, kind: str, **changes: Any) -> None:
        self.kind = kind
        self.serving = copy.copy(getattr(state, kind))
        name = NAMES[kind]
        vars(self.serving).pop(name)
        vars(self.serving).update(changes)
        self._own = getattr(self.serving, name)
        vllm_chunks.install(SimpleNamespace(**{kind: self.serving}))
        self._ours = getattr(self.serving, name)

    def request(self, **fields: Any) -> Any:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest

        if self.kind == CHAT:
            messages = [{"role": "user", "content": "Hello"}]
            body = {"messages": messages, "model": "m", "stream": True, **fields}
            return ChatCompletionRequest.model_validate(body)
        body = {"prompt": "Hello", "model": "m", "stream": True, **fields}
        return CompletionRequest.model_validate(body)

    def open(self, request: Any, results: Any, *, ours: bool, metadata: Any = None) -> Any:
        generator = self._ours if ours else self._own
        tokenizer = self.serving.renderer.tokenizer
        metadata = metadata or SimpleNamespace(final_usage_info=None)
        if self.kind == CHAT:
            return generator(
                request,
                results,
                'chatcmpl-"1',
                "mödel",
                request.messages,
                tokenizer,
                metadata,
                chat_template_kwargs={},
            )
        return generator(
            request,
            [{"type": "token", "prompt": "Hello", "prompt_token_ids": [1, 2, 3]}],
            results,
            'cmpl-"1',
            1_700_000_000,
            "mödel",
            num_prompts=1,
            tokenizer=tokenizer,
            request_metadata=metadata,
        )

    def story(self, request: Any, script: list[Any], *, ours: bool) -> list[Any]:
        """What happens, in order: outputs read, chunks, and the usage at the end."""
        events: list[Any] = []

        async def results() -> AsyncIterator[Any]:
            for number, item in enumerate(copy.deepcopy(script)):
                events.append(f"output {number}")
                if isinstance(item, Exception):
                    raise item
                yield item if self.kind == CHAT else (0, item)

        metadata = SimpleNamespace(final_usage_info=None)

        async def read() -> None:
            stream = self.open(request, results(), ours=ours, metadata=metadata)
            async for chunk in stream:
                events.append(chunk)  # noqa: PERF401 - `results` appends in between

        with pytest.raises(StopIteration):  # nothing in it waits for anything
            read().send(None)
        events.append(metadata.final_usage_info)
        return events

    def taken(self, request: Any, script: list[Any]) -> list[Any]:
        """The chunks, and the usage at the end, if results are intercepted as soon as possible."""
        chunks: list[Any] = []
        tap = vllm_chunks.Tap(Recorder(), 0)

        async def results() -> AsyncIterator[Any]:
            for item in copy.deepcopy(script):
                if isinstance(item, Exception):
                    raise item
                chunk = tap.to_chunk(item) if tap.to_chunk is not None else None
                if chunk is None:
                    tap.to_chunk = None
                    yield item if self.kind == CHAT else (0, item)
                elif chunk:
                    chunks.append(chunk)

        metadata = SimpleNamespace(final_usage_info=None)

        async def read() -> None:
            vllm_chunks.TAP.set(tap)
            async for chunk in self.open(request, results(), ours=True, metadata=metadata):
                chunks.append(chunk)  # noqa: PERF401 - `results` appends in between

        with pytest.raises(StopIteration):
            contextvars.copy_context().run(read().send, None)
        return [*chunks, metadata.final_usage_info]

    def is_templated(self, request: Any, **changes: Any) -> bool:
        stream = self.open(request, None, ours=True, **changes)
        templated = stream.ag_code is vllm_chunks._stream.__code__
        assert templated or stream.ag_code is self._own.__code__
        return templated


def result(
    text: str,
    n_tokens: int = 1,
    finish_reason: str | None = None,
    stop_reason: int | str | None = None,
    **fields: Any,
) -> Any:
    from vllm.outputs import CompletionOutput, RequestOutput
    from vllm.v1.metrics.stats import RequestStateStats

    output = CompletionOutput(
        index=0,
        text=text,
        token_ids=list(range(n_tokens)),
        cumulative_logprob=None,
        logprobs=None,
        finish_reason=finish_reason,
        stop_reason=stop_reason,
    )
    metrics = RequestStateStats(queued_ts=1.0, scheduled_ts=2.0, first_token_ts=3.0)
    metrics.last_token_ts = 4.0
    return RequestOutput(
        request_id="r",
        prompt=None,
        prompt_token_ids=[1, 2, 3],
        prompt_logprobs=None,
        outputs=[output],
        finished=finish_reason is not None,
        metrics=metrics,
        **fields,
    )


def chunks_of(story: list[Any]) -> list[Any]:
    return [event for event in story if not str(event).startswith("output ")]


def scripts() -> dict[str, list[Any]]:
    """Sequences of results of an engine, by what is special about them."""
    from vllm.exceptions import GenerationError
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

    chunks = [result("One", num_cached_tokens=2), result(' "two"\n'), result(" drei", 3)]
    odd = [result("\U0001f600"), result("")]
    return {
        "length": [*chunks, result(".", 1, "length")],
        "stop": [*chunks, result("", 1, "stop")],
        "stop string": [*chunks, result("", 1, "stop", "\x00é")],
        "stop token": [*chunks, result("!", 2, "stop", 7)],
        "abort": [*chunks, result("", 0, "abort")],
        "abort of the first": [result("", 0, "abort")],
        "repetition": [*chunks, result("x", 1, "repetition")],
        "error": [*chunks, result("", 0, "error")],
        "error of the first": [result("", 0, "error")],
        "one token": [result("One", 1, "length")],
        "two tokens": [result("One"), result("two", 1, "stop")],
        "nothing": [result("", 1, "stop")],
        "blanks": [result(""), *odd, *odd, result("", 2), result("", 1, "length")],
        "prefill in chunks": [result("", 0), result("", 0), *chunks, result("", 1, "stop")],
        "no token in between": [
            *chunks,
            result("", 0),
            result("x", 0),
            *chunks,
            result("", 1, "stop"),
        ],
        "merged": [result("One two", 2, num_cached_tokens=0), result(" three four", 2, "length")],
        "the engine dies": [*chunks, EngineDeadError()],
        "the engine dies at once": [EngineDeadError()],
        "the engine dies after a token": [result("One"), EngineDeadError()],
        "a request fails": [*chunks, GenerationError("sorry")],
        "a request fails otherwise": [*chunks, EngineGenerateError("sorry")],
        "anything fails": [*chunks, ValueError("sorry")],
    }


@pytest.mark.parametrize("kind", NAMES)
def test_the_same_chunks_at_the_same_time(kind: str, state: Any) -> None:
    for changes, fields in itertools.product(SERVINGS[kind], PLAIN[kind]):
        pair = Pair(state, kind, **changes)
        request = pair.request(**fields)
        assert pair.is_templated(request), (changes, fields)
        for name, script in scripts().items():
            own = pair.story(request, script, ours=False)
            assert pair.story(request, script, ours=True) == own, (name, changes, fields)
            assert pair.taken(request, script) == chunks_of(own), (name, changes, fields)
            assert "[DONE]" in own[-2]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(
    ["", "<tool_call>", '{"a":', "<think>", " ", "\u2028"]
)
deltas = st.tuples(texts, st.integers(0, 3))
endings = st.tuples(
    texts,
    st.integers(0, 2),
    st.sampled_from(["stop", "length", "abort", "error"]),
    st.none() | st.integers(0, 9) | texts,
)


@pytest.mark.parametrize("kind", NAMES)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    chunks=st.lists(deltas, max_size=8), ending=endings, parser=st.booleans(), usage=st.booleans()
)
def test_the_same_chunks_for_any_texts(
    kind: str, state: Any, chunks: list[Any], ending: Any, parser: bool, usage: bool
) -> None:
    pair = Pair(state, kind, **({} if parser else {"parser_cls": None}))
    request = pair.request(stream_options={"include_usage": usage})
    script = [*itertools.starmap(result, chunks), result(*ending)]
    assert pair.is_templated(request)
    own = pair.story(request, script, ours=False)
    assert pair.story(request, script, ours=True) == own
    assert pair.taken(request, script) == chunks_of(own)


def test_what_is_not_intercepted_is_collected_and_so_is_what_follows(vllm_engine: Any) -> None:
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.output_processor import RequestOutputCollector

    def intercept(item: Any) -> str | None:
        if item.outputs[0].text == "?":
            raise ValueError("sorry")
        return None if item.finished else item.outputs[0].text

    collector, journal = RequestOutputCollector(RequestOutputKind.DELTA, "r"), Recorder()
    tap = vllm_chunks.Tap(journal, 0)
    tap.queue = collector
    journal.prompt(0, 3)
    chunks: list[bytes] = []
    journal.client = chunks.append
    for last in [result("?"), result("", 1, "stop"), ValueError("dead")]:
        chunks.clear()
        tap.to_chunk = intercept
        tap.put(result("a"))
        tap.put(result("b", 2))
        assert (chunks, collector.output) == ([b"a", b"b"], None)
        tap.put(last)
        assert collector.output is last
        if last.__class__ is not ValueError:
            tap.put(result("c"))  # merged with what has not been read, as ever
        assert chunks == [b"a", b"b"]
        collector.output = None
    assert journal.token_ids[0, 0] == [0, 0, 1] * 3


@pytest.mark.parametrize(
    ("kind", "fields"), [(kind, fields) for kind in NAMES for fields in NOT_PLAIN[kind]]
)
def test_a_request_that_is_not_plain_is_left_to_vllm(
    kind: str, fields: dict[str, Any], state: Any
) -> None:
    pair = Pair(state, kind)
    assert pair.is_templated(pair.request())
    assert not pair.is_templated(pair.request(**fields))


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize(
    "changes", [{"enable_force_include_usage": True}, {"enable_log_outputs": True}]
)
def test_streams_of_a_server_with_additions_are_left_to_vllm(
    kind: str, changes: Any, state: Any
) -> None:
    pair = Pair(state, kind, **changes)
    assert not pair.is_templated(pair.request())


@pytest.mark.parametrize(
    ("tool_parser", "reasoning_parser", "templated"),
    [
        ("hermes", "", True),
        (None, "deepseek_r1", False),
        ("hermes", "deepseek_r1", False),
        ("qwen3_coder", "", False),
        ("kimi_k3", "", False),
    ],
)
def test_streams_with_a_parser_of_text_are_left_to_vllm(
    tool_parser: str | None, reasoning_parser: str, templated: bool, state: Any
) -> None:
    from vllm.parser import ParserManager

    parser = ParserManager.get_parser(tool_parser, reasoning_parser, enable_auto_tools=True)
    pair = Pair(state, CHAT, parser_cls=parser)
    assert pair.is_templated(pair.request()) is templated


def test_several_prompts_are_left_to_vllm(state: Any) -> None:
    serving = Pair(state, COMPLETION).serving
    request = Pair(state, COMPLETION).request(prompt=["a", "b"])
    stream = serving.completion_stream_generator(request, [], None, "id", 0, "m", 2, None, None)
    assert stream.ag_code is not vllm_chunks._stream.__code__


def test_the_applications_streams_are_templated(state: Any) -> None:
    """Templates are installed, and their chunks are JSON."""
    for kind, name in NAMES.items():
        assert name in vars(getattr(state, kind))
        pair = Pair(state, kind)
        script = [result("One"), result('"\\'), result("", 1, "stop")]
        chunks = [e for e in pair.story(pair.request(), script, ours=True) if "data: {" in str(e)]
        assert all(json.loads(chunk.removeprefix("data: ")) for chunk in chunks)

"""Requests, good and bad, that vLLM's own application and the gateway answer in the same way."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

CHAT, COMPLETIONS, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
JSON = "application/json"


class Case(NamedTuple):
    """One request. `{model}` in a body is the name of the model."""

    name: str
    path: str
    body: dict[str, Any] | bytes
    own_words: str = ""
    """Why the gateway answers itself, with the same status but other words; empty: it does not."""
    status: int = 0
    """The gateway's status, where it differs on purpose."""
    content_type: str = JSON
    method: str = "POST"

    def content(self, model: str) -> bytes:
        """The request's body."""
        if isinstance(self.body, bytes):
            return self.body
        if self.body.get("model", "") is None:
            return json.dumps({k: v for k, v in self.body.items() if k != "model"}).encode()
        return json.dumps({"model": model, **self.body}).encode()


ASK = [{"role": "user", "content": "What is Flotilla?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
ASK_WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
BEFORE_QUEUE = "checked before the request is queued"
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}


def chat(**fields: Any) -> dict[str, Any]:
    """A chat of a few tokens, greedy."""
    return {"messages": ASK, "max_tokens": 8, "temperature": 0, **fields}


def prompt(**fields: Any) -> dict[str, Any]:
    """A completion of a few tokens, greedy."""
    return {"prompt": "A queue is", "max_tokens": 6, "temperature": 0, **fields}


def message(**fields: Any) -> dict[str, Any]:
    """A message of a few tokens, greedy."""
    return {"messages": ASK, "max_tokens": 8, "temperature": 0, **fields}


_CHAT_GOOD: dict[str, dict[str, Any]] = {
    "plain": chat(),
    "no model": chat(model=None),
    "empty model": chat(model=""),
    "system": chat(messages=[{"role": "system", "content": "Be short."}, *ASK]),
    "developer": chat(messages=[{"role": "developer", "content": "Be short."}, *ASK]),
    "several turns": chat(messages=[*ASK, {"role": "assistant", "content": "A fleet."}, *ASK]),
    "content in parts": chat(
        messages=[{"role": "user", "content": [{"type": "text", "text": "What is Flotilla?"}]}]
    ),
    "unicode": chat(messages=[{"role": "user", "content": "Was ist ☃ 漢字?"}]),
    "empty content": chat(messages=[{"role": "user", "content": ""}]),
    "two choices": chat(n=2),
    "logprobs": chat(logprobs=True),
    "top logprobs": chat(logprobs=True, top_logprobs=3),
    "prompt logprobs": chat(prompt_logprobs=1),
    "stop": chat(max_tokens=40, stop=["durable"]),
    "stop text": chat(max_tokens=40, stop="a"),
    "stop token ids": chat(max_tokens=40, stop_token_ids=[5, 6]),
    "stop in output": chat(max_tokens=40, stop=["durable"], include_stop_str_in_output=True),
    "max completion tokens": chat(max_tokens=None, max_completion_tokens=5),
    "min tokens": chat(min_tokens=6),
    "ignore eos": chat(max_tokens=60, ignore_eos=True),
    "seed": chat(temperature=0.7, seed=7),
    "penalties": chat(presence_penalty=1, frequency_penalty=0.5, repetition_penalty=1.1),
    "logit bias": chat(logit_bias={"5": -50, "6": 10}),
    "top k, top p, min p": chat(temperature=0.5, seed=3, top_k=5, top_p=0.9, min_p=0.1),
    "bad words": chat(bad_words=["durable"]),
    "json object": chat(response_format={"type": "json_object"}),
    "json schema": chat(max_tokens=20, response_format=FORMAT),
    "regex": chat(structured_outputs={"regex": "[a-c]{3}"}),
    "choice": chat(structured_outputs={"choice": ["yes", "no"]}),
    "tools auto": chat(messages=ASK_WEATHER, tools=[WEATHER], max_tokens=60),
    "tools none": chat(messages=ASK_WEATHER, tools=[WEATHER], tool_choice="none"),
    "tools required": chat(
        messages=ASK_WEATHER, tools=[WEATHER], tool_choice="required", max_tokens=60
    ),
    "tool by name": chat(
        messages=ASK_WEATHER,
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        max_tokens=60,
    ),
    "tool's answer": chat(
        messages=[
            *ASK_WEATHER,
            {
                "role": "assistant",
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "Sunny"},
        ],
        tools=[WEATHER],
    ),
    "token ids": chat(return_token_ids=True),
    "tokens as ids": chat(logprobs=True, return_tokens_as_token_ids=True),
    "special tokens": chat(skip_special_tokens=False),
    "echo": chat(echo=True),
    "continued": chat(
        messages=[*ASK, {"role": "assistant", "content": "Flotilla is"}],
        continue_final_message=True,
        add_generation_prompt=False,
    ),
    "truncated prompt": chat(truncate_prompt_tokens=5),
    "user, metadata, store": chat(user="u", metadata={"a": "b"}, store=False),
    "unknown field": chat(nonsense=1),
}
_CHAT_STREAMED = (
    "plain", "several turns", "unicode", "two choices", "top logprobs", "stop", "json schema",
    "choice", "tools auto", "tools required", "tool by name", "token ids", "ignore eos", "seed",
    "special tokens", "echo", "user, metadata, store",
)  # fmt: skip
_USAGE = {"include_usage": True}
_NO_TYPE = {
    "type": "json_schema",
    "json_schema": {"name": "x", "schema": {"type": "nonsense"}},
}
_CHAT_STREAMS: dict[str, dict[str, Any]] = {
    name: _CHAT_GOOD[name] | {"stream": True} for name in _CHAT_STREAMED
} | {
    "usage": chat(stream=True, stream_options=_USAGE),
    "usage in each chunk": chat(
        stream=True, stream_options={**_USAGE, "continuous_usage_stats": True}
    ),
    "long": chat(stream=True, max_tokens=300, ignore_eos=True),
    "too hot, streamed": chat(stream=True, temperature=-1),
    "max_tokens below zero, streamed": chat(stream=True, max_tokens=-1),
    "a schema of no type, streamed": chat(stream=True, response_format=_NO_TYPE),
    "too long, streamed": chat(stream=True, messages=[{"role": "user", "content": "word " * 4090}]),
}
_CHAT_BAD: dict[str, dict[str, Any]] = {
    "temperature below zero": chat(temperature=-1),
    "top_p of zero": chat(top_p=0),
    "top_p above one": chat(top_p=1.5),
    "top_k below minus one": chat(top_k=-2),
    "min_p above one": chat(min_p=2),
    "presence penalty of three": chat(presence_penalty=3),
    "repetition penalty of zero": chat(repetition_penalty=0),
    "max_tokens of zero": chat(max_tokens=0),
    "max_tokens below zero": chat(max_tokens=-1),
    "max_tokens too large": chat(max_tokens=100_000),
    "max_tokens as text": chat(max_tokens="many"),
    "min above max": chat(min_tokens=9, max_tokens=8),
    "a stop that is a number": chat(stop=7),
    "an empty stop": chat(stop=[""]),
    "top_logprobs without logprobs": chat(top_logprobs=3),
    "logit bias of no token": chat(logit_bias={"x": 1}),
    "logit bias out of range": chat(logit_bias={"99999999": 1}),
    "seed out of range": chat(seed=2**70),
    "no content": chat(messages=[{"role": "user"}]),
    "an image for a text model": chat(
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,aaaa"}}
                ],
            }
        ]
    ),
    "a tool choice without tools": chat(tool_choice="required"),
    "a tool choice that is not there": chat(
        tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "fly"}}
    ),
    "a tool without a name": chat(tools=[{"type": "function", "function": {}}]),
    "a schema of no type": chat(response_format=_NO_TYPE),
    "an unknown response format": chat(response_format={"type": "nonsense"}),
    "an open regex": chat(structured_outputs={"regex": "("}),
    "two kinds of structure": chat(structured_outputs={"regex": "a", "choice": ["a"]}),
    "stream options without a stream": chat(stream_options=_USAGE),
    "too long": chat(messages=[{"role": "user", "content": "word " * 4090}]),
    "add_generation_prompt and continue": chat(
        messages=[*ASK, {"role": "assistant", "content": "x"}], continue_final_message=True
    ),
}
_COMPLETION_GOOD: dict[str, dict[str, Any]] = {
    "plain": prompt(),
    "no model": prompt(model=None),
    "two prompts": prompt(prompt=["A queue is", "Once upon a time"]),
    "token ids": prompt(prompt=[5, 6, 7]),
    "lists of token ids": prompt(prompt=[[5, 6], [7]]),
    "two choices": prompt(n=2),
    "logprobs": prompt(logprobs=2),
    "echo": prompt(echo=True),
    "echo with logprobs": prompt(echo=True, logprobs=1),
    "echo alone": prompt(echo=True, max_tokens=0),
    "prompt logprobs": prompt(prompt_logprobs=1),
    "stop": prompt(max_tokens=30, stop=["a"]),
    "seed": prompt(temperature=0.8, seed=11),
    "no max_tokens": {"prompt": "A queue is", "temperature": 0},
    "return token ids": prompt(return_token_ids=True),
    "truncated": prompt(truncate_prompt_tokens=2),
    "json schema": prompt(max_tokens=20, response_format=FORMAT),
}
_COMPLETION_STREAMED = ("plain", "two prompts", "token ids", "two choices", "logprobs", "echo")
_COMPLETION_STREAMS = {
    name: _COMPLETION_GOOD[name] | {"stream": True} for name in _COMPLETION_STREAMED
} | {
    "usage": prompt(stream=True, stream_options=_USAGE),
    "too long, streamed": prompt(stream=True, prompt="word " * 8000),
}
_COMPLETION_BAD: dict[str, dict[str, Any]] = {
    "an empty prompt": prompt(prompt=""),
    "token ids out of the vocabulary": prompt(prompt=[99_999_999]),
    "a suffix": prompt(suffix="end"),
    "logprobs below zero": prompt(logprobs=-5),
    "temperature below zero": prompt(temperature=-1),
    "max_tokens below zero": prompt(max_tokens=-1),
    "too long": prompt(prompt="word " * 4090),
    "prompt logprobs and a stream": prompt(prompt_logprobs=1, stream=True),
}
_OTHER: tuple[Case, ...] = (
    Case("batch", f"{CHAT}/batch", chat(messages=[ASK, ASK_WEATHER])),
    Case("batch of one", f"{CHAT}/batch", chat(messages=[ASK])),
    Case("batch of one with two choices", f"{CHAT}/batch", chat(messages=[ASK], n=2)),
    Case("batch of nothing", f"{CHAT}/batch", chat(messages=[])),
    Case("tokenize", "/tokenize", {"prompt": "A queue is"}),
    Case("tokenize without special tokens", "/tokenize", {"prompt": "A queue is",
         "add_special_tokens": False, "return_token_strs": True}),
    Case("tokenize a chat", "/tokenize", {"messages": ASK}),
    Case("tokenize a chat without the answer's start", "/tokenize",
         {"messages": ASK, "add_generation_prompt": False}),
    Case("tokenize a chat with tools", "/tokenize", {"messages": ASK, "tools": [WEATHER]}),
    Case("tokenize nothing", "/tokenize", {}),
    Case("tokenize a number", "/tokenize", {"prompt": 7}),
    Case("detokenize", "/detokenize", {"tokens": [5, 6, 7]}),
    Case("detokenize a token beyond the vocabulary", "/detokenize", {"tokens": [2**40]}),
    Case("detokenize nothing", "/detokenize", {"tokens": []}),
    Case("detokenize text", "/detokenize", {"tokens": "abc"}),
    Case("detokenize without tokens", "/detokenize", {}),
    Case("message", MESSAGES, message()),
    Case("message with system", MESSAGES, message(system="Be short.")),
    Case("message in parts", MESSAGES, message(
        messages=[{"role": "user", "content": [{"type": "text", "text": "Hi"}]}])),
    Case("message with stop", MESSAGES, message(max_tokens=40, stop_sequences=["durable"])),
    Case("message with tools", MESSAGES, message(messages=ASK_WEATHER, max_tokens=60, tools=[
        {"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}])),
    Case("message streamed", MESSAGES, message(stream=True)),
    Case("message without max_tokens", MESSAGES, {"messages": ASK},
         "errors have Anthropic's types"),
    Case("message of nothing", MESSAGES, message(messages=[]), "errors have Anthropic's types"),
    Case("message too hot", MESSAGES, message(temperature=-1), "errors have Anthropic's types"),
    Case("tokens of a message", f"{MESSAGES}/count_tokens", {"messages": ASK}),
    Case("tokens of a system prompt", f"{MESSAGES}/count_tokens",
         {"messages": ASK, "system": "Be short."}),
    Case("score items", "/generative_scoring",
         {"query": "Is this a fleet?", "items": ["yes", "no"], "label_token_ids": [5, 6]}),
    Case("score token ids", "/generative_scoring",
         {"query": [5, 6], "items": [[7], [8]], "label_token_ids": [5, 6]}),
    Case("score items first, without a softmax", "/generative_scoring",
         {"query": [7], "items": [[8], [9]], "label_token_ids": [5],
          "apply_softmax": False, "item_first": True}),
    Case("score a label beyond the vocabulary", "/generative_scoring",
         {"query": "?", "items": ["a"], "label_token_ids": [10**6]}),
    Case("score an item beyond the vocabulary", "/generative_scoring",
         {"query": [7], "items": [[10**6]], "label_token_ids": [5]}),
    Case("score no items", "/generative_scoring",
         {"query": "x", "items": [], "label_token_ids": [5]}),
    Case("score without labels", "/generative_scoring", {"query": "x", "items": ["y"]}),
    Case("invoke a chat", "/invocations", chat()),
    Case("invoke a completion", "/invocations", prompt()),
    Case("invoke nothing", "/invocations", {"nonsense": 1}),
    Case("decide", "/v1/systemone", {"state": "The wind blows.", "questions": {
        "calm": {"type": "boolean", "instructions": "Is it calm?"}}}),
    Case("decide nothing", "/v1/systemone", {"state": "x", "questions": {}}),
)  # fmt: skip
_GATEWAYS: tuple[Case, ...] = (
    Case("unknown model", CHAT, chat(model="nothing"), "the fleet's models are named"),
    Case("model that is a number", CHAT, chat(model=7), BEFORE_QUEUE),
    Case("no messages", CHAT, {"max_tokens": 3}, BEFORE_QUEUE),
    Case("messages that are a text", CHAT, chat(messages="hello"), BEFORE_QUEUE),
    Case("a message that is a text", CHAT, chat(messages=["hello"]), BEFORE_QUEUE),
    Case("a message without role", CHAT, chat(messages=[{"content": "x"}]), BEFORE_QUEUE),
    Case(
        "an unknown part",
        CHAT,
        chat(messages=[{"role": "user", "content": [{"type": "nonsense"}]}]),
        "only the part's own type is validated",
    ),
    Case("batch of no conversations", f"{CHAT}/batch", chat(), BEFORE_QUEUE),
    Case("n of zero", CHAT, chat(n=0), BEFORE_QUEUE),
    Case("n as text", CHAT, chat(n="x"), BEFORE_QUEUE),
    Case("stream as text", CHAT, chat(stream="maybe"), BEFORE_QUEUE),
    Case("too many top_logprobs", CHAT, chat(logprobs=True, top_logprobs=10_000), BEFORE_QUEUE),
    Case("too many logprobs", COMPLETIONS, prompt(logprobs=10_000), BEFORE_QUEUE),
    Case("invalid JSON", CHAT, b'{"messages": [', BEFORE_QUEUE),
    Case("a list", CHAT, b"[1]", BEFORE_QUEUE),
    Case("nothing", CHAT, b"", BEFORE_QUEUE),
    Case("no UTF-8", CHAT, b'{"messages": "\xff"}', BEFORE_QUEUE),
    Case("another content type", CHAT, b"{}", "415 is what HTTP has for it", 415, "text/plain"),
    Case("another method", CHAT, b"", BEFORE_QUEUE, method="GET"),
    Case("unknown path", "/v1/nothing", b"{}", "the error has OpenAI's shape"),
)


def _cases(path: str, bodies: dict[str, dict[str, Any]], kind: str) -> list[Case]:
    return [Case(f"{kind}: {name}", path, body) for name, body in bodies.items()]


GENERATE: tuple[Case, ...] = (
    *_cases(CHAT, _CHAT_GOOD, "chat"),
    *_cases(CHAT, _CHAT_STREAMS, "chat stream"),
    *_cases(CHAT, _CHAT_BAD, "bad chat"),
    *_cases(COMPLETIONS, _COMPLETION_GOOD, "completion"),
    *_cases(COMPLETIONS, _COMPLETION_STREAMS, "completion stream"),
    *_cases(COMPLETIONS, _COMPLETION_BAD, "bad completion"),
    *_OTHER,
    *_GATEWAYS,
)
"""For the demo model."""

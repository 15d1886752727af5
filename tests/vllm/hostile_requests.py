"""Requests that broken or hostile clients send, each with the statuses that are right for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
QUESTION = [{"role": "user", "content": "What is Flotilla?"}]
MODEL = "demo"
SHORT = {"model": MODEL, "messages": QUESTION, "max_tokens": 4, "temperature": 0}


class Hostile(NamedTuple):
    """One request."""

    name: str
    path: str
    body: bytes
    statuses: tuple[int, ...]
    headers: dict[str, str]


def nested(depth: int, inner: Any = "x", name: str = "a") -> Any:
    """An object in an object, `depth` times."""
    for _ in range(depth):
        inner = {name: inner}
    return inner


def lists(depth: int) -> Any:
    """A list in a list, `depth` times."""
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


def many_ways() -> dict[str, Any]:
    """A schema with 10^12 ways through it."""
    digit = {"anyOf": [{"const": f"{way} of ten"} for way in range(10)]}
    names = [f"p{i}" for i in range(12)]
    return {"type": "object", "properties": dict.fromkeys(names, digit), "required": names}


def doubling(levels: int) -> dict[str, Any]:
    """A schema that is `2 ** levels` times as large once its references are followed."""
    definitions: dict[str, Any] = {f"d{levels}": {"type": "string"}}
    for level in range(levels):
        inner = {"$ref": f"#/$defs/d{level + 1}"}
        definitions[f"d{level}"] = {
            "type": "object",
            "properties": {"a": inner, "b": inner},
            "required": ["a", "b"],
        }
    return {"$ref": "#/$defs/d0", "$defs": definitions}


def tool(parameters: Any = None, name: Any = "f") -> dict[str, Any]:
    """A tool with these parameters."""
    return {"type": "function", "function": {"name": name, "parameters": parameters or {}}}


def schema_of(schema: Any) -> dict[str, Any]:
    """A response format with this schema."""
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    }


def structured(**constraint: Any) -> dict[str, Any]:
    """Structured outputs of vLLM."""
    return {"structured_outputs": constraint}


def image(url: str) -> list[dict[str, Any]]:
    """A message with a picture."""
    parts = [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": url}}]
    return [{"role": "user", "content": parts}]


CYCLE = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
OBJECT = {"type": "object", "properties": {"a": CYCLE}, "$defs": CYCLE["$defs"]}
NEEDS_PERMISSION = (
    "prompt_embeds", "image_embeds", "audio_embeds", "video_embeds", "chat_template",
    "media_io_kwargs", "mm_processor_kwargs", "kv_transfer_params",
    "ec_transfer_params", "kv_hints", "vllm_xargs", "priority", "cache_salt", "request_id",
    "data_parallel_rank", "data", "api_base", "base_url", "api_key", "extra_headers",
)  # fmt: skip
"""Fields that are refused unless the operator allows them."""
REFUSED_IN_CHAT: dict[str, dict[str, Any]] = {
    **{f"field {name}": {name: "x"} for name in NEEDS_PERMISSION},
    "arguments of the tokenizer": {
        "chat_template_kwargs": {"tokenize": True, "padding": "max_length", "max_length": 10**9}
    },
    "template in another field": {"chat_template_kwargs": {"chat_template": "x"}},
    "max_tokens 0": {"max_tokens": 0},
    "max_tokens -1": {"max_tokens": -1},
    "max_tokens -2^63": {"max_tokens": -(2**63)},
    "max_tokens 2^63": {"max_tokens": 2**63},
    "max_tokens 2^70": {"max_tokens": 2**70},
    "max_tokens 1.5": {"max_tokens": 1.5},
    "max_tokens above the context": {"max_tokens": 5000},
    "n 0": {"n": 0},
    "n -1": {"n": -1},
    "n 1e9": {"n": 10**9},
    "n as text": {"n": "many"},
    "best_of 1e9": {"best_of": 10**9},
    "top_logprobs 21": {"logprobs": True, "top_logprobs": 21},
    "top_logprobs 1e6": {"logprobs": True, "top_logprobs": 10**6},
    "top_logprobs -2": {"logprobs": True, "top_logprobs": -2},
    "top_logprobs as text": {"logprobs": True, "top_logprobs": "x"},
    "prompt_logprobs 1e6": {"prompt_logprobs": 10**6},
    "prompt_logprobs -2": {"prompt_logprobs": -2},
    "prompt_logprobs all": {"prompt_logprobs": -1},
    "temperature -1": {"temperature": -1},
    "temperature as text": {"temperature": "hot"},
    "temperature as list": {"temperature": [1]},
    "top_p 0": {"top_p": 0},
    "top_p -1": {"top_p": -1},
    "top_p 1.1": {"top_p": 1.1},
    "top_k -5": {"top_k": -5},
    "top_k 1.5": {"top_k": 1.5},
    "min_p 2": {"min_p": 2},
    "presence_penalty 1e308": {"presence_penalty": 1e308},
    "frequency_penalty 1e308": {"frequency_penalty": -1e308},
    "repetition_penalty -1": {"repetition_penalty": -1},
    "stop, 1,000 strings": {"stop": ["x"] * 1000},
    "stop, empty": {"stop": ""},
    "stop, 1 MB": {"stop": "x" * 1_000_000},
    "stop, null in it": {"stop": [None]},
    "seed 2^64": {"seed": 2**64},
    "logit_bias of words": {"logit_bias": {"word": 1}},
    "logit_bias beyond the vocabulary": {"logit_bias": {"99999999": 1}},
    "logit_bias, 100,000": {"logit_bias": {str(i): 1 for i in range(100_000)}},
    "allowed_token_ids beyond": {"allowed_token_ids": [10**9]},
    "allowed_token_ids, none": {"allowed_token_ids": []},
    "bad_words, 10,000": {"bad_words": ["word"] * 10_000},
    "stop_token_ids beyond": {"stop_token_ids": [2**40]},
    "messages, none": {"messages": []},
    "messages as text": {"messages": "hello"},
    "messages as object": {"messages": {"role": "user"}},
    "messages of numbers": {"messages": [1, 2]},
    "role missing": {"messages": [{"content": "x"}]},
    "content a number": {"messages": [{"role": "user", "content": 5}]},
    "content a list of numbers": {"messages": [{"role": "user", "content": [1]}]},
    "messages, 1 million": {"messages": [{}] * 150_000},
    "nested tool calls": {
        "messages": [
            *QUESTION,
            {"role": "assistant", "tool_calls": [{"function": nested(400)}]},
        ]
    },
    "nested content": {"messages": [{"role": "user", "content": lists(400)}]},
    "tool calls as text": {"messages": [*QUESTION, {"role": "assistant", "tool_calls": "x"}]},
    "tool calls of texts": {"messages": [*QUESTION, {"role": "assistant", "tool_calls": ["x"]}]},
    "tool calls without function": {
        "messages": [*QUESTION, {"role": "assistant", "content": "", "tool_calls": [{"id": "x"}]}]
    },
    "image at the metadata service": {"messages": image("http://169.254.169.254/latest/")},
    "image in a file": {"messages": image("file:///etc/passwd")},
    "image by gopher": {"messages": image("gopher://127.0.0.1:6379/_")},
    "image, two hosts": {"messages": image("http://allowed\\@127.0.0.1/")},
    "image as data": {"messages": image("data:image/png;base64,AAAA")},
    "response_format as text": {"response_format": "json"},
    "response_format unknown": {"response_format": {"type": "nonsense"}},
    "response_format without schema": {"response_format": {"type": "json_schema"}},
    "schema of an unknown type": schema_of({"type": "nonsense"}),
    "schema as text": schema_of("nonsense"),
    "schema of 5 MB": schema_of({"enum": ["x" * 5_000_000]}),
    "schema, 100,000 values": schema_of({"enum": [f"value {i}" for i in range(100_000)]}),
    "schema, nested": schema_of(nested(300, {"type": "string"}, "properties")),
    "schema with a bad pattern": schema_of({"type": "string", "pattern": "(["}),
    "structured_outputs as text": {"structured_outputs": "x"},
    "structured_outputs as list": {"structured_outputs": []},
    "structured_outputs, empty": structured(),
    "structured_outputs, two": structured(regex="a", choice=["b"]),
    "regex of 1 MB": structured(regex="a" * 1_000_000),
    "regex that is wrong": structured(regex="(["),
    "regex as number": structured(regex=5),
    "choice, 100,000": structured(choice=[f"choice {i}" for i in range(100_000)]),
    "choice of numbers": structured(choice=[1]),
    "choice, none": structured(choice=[]),
    "grammar that is wrong": structured(grammar="root ::= ((("),
    "grammar without root": structured(grammar='start ::= "a"'),
    "grammar of nothing": structured(grammar=" "),
    "left recursive grammar": structured(grammar='root ::= root "a" | root "b"'),
    "structural tag as text": structured(structural_tag="x"),
    "json as text that is not JSON": structured(json="{nonsense"),
    "json_object false": structured(json_object=False),
    "tools, 10,000": {"tools": [tool()] * 10_000},
    "tools, empty": {"tools": []},
    "tools as text": {"tools": "x"},
    "tools of numbers": {"tools": [1]},
    "tool without a name": {"tools": [{"type": "function", "function": {}}]},
    "tool named by 1 MB": {"tools": [tool(name="f" * 1_000_000)]},
    "tool named by a number": {"tools": [tool(name=5)]},
    "tool_choice, tool missing": {
        "tools": [tool()],
        "tool_choice": {"type": "function", "function": {"name": "another"}},
    },
    "tool_choice without tools": {"tool_choice": "required"},
    "tool_choice, named, tools broken": {
        "tools": [{"type": "function"}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
    },
    "tool_choice, named, tools as text": {
        "tools": ["f"],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
    },
    "tool_choice as number": {"tools": [tool()], "tool_choice": 5},
    "tool_choice, nested": {"tools": [tool()], "tool_choice": nested(300)},
    "stream_options without stream": {"stream_options": {"include_usage": True}},
    "stream_options as text": {"stream": True, "stream_options": "x"},
    "service_tier unknown": {"service_tier": "nonsense"},
    "continue and generate": {"continue_final_message": True, "add_generation_prompt": True},
    "truncate_prompt_tokens 2^70": {"truncate_prompt_tokens": 2**70},
    "truncate_prompt_tokens -5": {"truncate_prompt_tokens": -5},
    "min_tokens above max_tokens": {"min_tokens": 100, "max_tokens": 1},
    "repetition_detection": {"repetition_detection": {"max_pattern_size": -1}},
    "logprob_token_ids": {"logprobs": True, "logprob_token_ids": list(range(1000))},
    "thinking_token_budget": {"thinking_token_budget": -7},
    "prompt_logprobs, long prompt": {
        "messages": [{"role": "user", "content": "€ß語 " * 800}],
        "prompt_logprobs": 20,
        "max_tokens": 1,
    },
    "8 MB to truncate": {
        "messages": [{"role": "user", "content": "a b " * 2_000_000}],
        "truncate_prompt_tokens": 10,
    },
    "flotilla as text": {"flotilla": "x"},
}
"""Answered with 400, or 413."""

ANY_ANSWER: dict[str, dict[str, Any]] = {
    "stream as text": {"stream": "yes"},
    "stream as number": {"stream": 1},
    "role unknown": {"messages": [{"role": "nonsense" * 100, "content": "x"}]},
    "content missing": {"messages": [{"role": "user"}]},
    "tool arguments not JSON": {
        "messages": [
            *QUESTION,
            {
                "role": "assistant",
                "tool_calls": [
                    {
                        "id": "1",
                        "type": "function",
                        "function": {"name": "f", "arguments": "{nonsense"},
                    }
                ],
            },
        ]
    },
    "n 64": {"n": 64, "max_tokens": 60, "temperature": 1},
    "nested quantifiers": structured(regex="(a+)+$"),
    "large repetition": structured(regex="[a-z]{1,1000000}"),
    "repetitions of repetitions": structured(regex="((([a-z]{1,100}){1,100}){1,100}){1,100}"),
    "$ref cycle": schema_of(CYCLE),
    "$ref cycle in an object": schema_of(OBJECT),
    "$ref to itself": schema_of({"$ref": "#"}),
    "$ref to nothing": schema_of({"$ref": "#/$defs/missing"}),
    "$ref to a host": schema_of({"$ref": "http://127.0.0.1:1/schema.json"}),
    "minItems 1e9": schema_of({"type": "array", "items": {"type": "integer"}, "minItems": 10**9}),
    "maxLength 1e9": schema_of({"type": "string", "maxLength": 10**9}),
    "maximum 1e300": schema_of({"type": "integer", "minimum": 3, "maximum": 10**300}),
    "pattern (a+)+$": schema_of({"type": "string", "pattern": "(a+)+$"}),
    "10^12 ways": schema_of(many_ways()),
    "10^12 ways in a tool": {"tools": [tool(many_ways())], "tool_choice": "required"},
    "2^40 references": schema_of(doubling(40)),
    "2^40 references in a tool": {"tools": [tool(doubling(40))], "tool_choice": "required"},
    "tool with a $ref cycle": {"tools": [tool(OBJECT)], "tool_choice": "required"},
    "tool with a bad pattern": {
        "tools": [
            tool({"type": "object", "properties": {"a": {"type": "string", "pattern": "(["}}})
        ],
        "tool_choice": "required",
    },
    "tool with many properties": {
        "tools": [
            tool(
                {
                    "type": "object",
                    "properties": {f"p{i}": {"type": "string"} for i in range(2000)},
                    "additionalProperties": False,
                }
            )
        ],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
    },
    "2,000 choices": structured(choice=[f"choice {i} " + "x" * 80 for i in range(2000)]),
    "1,500 numbers": schema_of({"enum": list(range(1500))}),
    "deep grammar": structured(grammar="root ::= " + "(" * 500 + '"a"' + ")" * 500),
    "ambiguous grammar": structured(grammar='root ::= root root | "a"'),
    "regex of alternatives": structured(regex="|".join(f"{i}word" for i in range(2000))),
    "control characters": {
        "messages": [{"role": "user", "content": "\0\x01\x1b[2J\u202e\r\nlevel=error"}]
    },
    "user of 1 MB": {"user": "x" * 1_000_000},
    "unknown field": {"nonsense": nested(20)},
    "2,000 messages": {"messages": [{"role": "user", "content": "x"}] * 2_000},
    "a text that is far too long": {"messages": [{"role": "user", "content": "word " * 100_000}]},
    "a word of 60,000 letters": {
        "messages": [{"role": "user", "content": "a" * 60_000}],
        "truncate_prompt_tokens": 100,
    },
    "beams": {"use_beam_search": True, "n": 16, "max_tokens": 20},
    "stream with a bad schema": {"stream": True, **schema_of({"type": "nonsense"})},
    "stream with a bad grammar": {"stream": True, **structured(grammar="root ::= (((")},
    "stream with a $ref cycle": {"stream": True, **schema_of(CYCLE)},
    "max_tokens as text": {"max_tokens": "10"},
    "max_tokens true": {"max_tokens": True},
    "temperature 1000": {"temperature": 1000},
    "64 stop strings": {"stop": [f"stop {i}" for i in range(64)]},
    "bad_words": {"bad_words": ["a", "the", "€"]},
    "logprobs": {"logprobs": True, "top_logprobs": 20, "max_tokens": 60},
}
"""Answered with 200, or with 400 and a reason: vLLM decides."""

PROMPTS: dict[str, Any] = {
    "none": [],
    "of no tokens": [[]],
    "mixed": [1, "x"],
    "token -1": [-1],
    "token 2^31": [2**31],
    "token 2^70": [2**70],
    "token beyond the vocabulary": [99_999],
    "number": 5,
    "object": {"a": 1},
    "null": None,
    "nested lists": lists(50),
    "too long": [1] * 5000,
    "far too long": [1] * 100_000,
    "too many": ["x"] * 600,
}
"""Answered with 400."""

RAW: dict[str, tuple[bytes, int]] = {
    "truncated": (b'{"model":', 400),
    "empty": (b"", 400),
    "null": (b"null", 400),
    "list": (b"[]", 400),
    "text": (b'"x"', 400),
    "number": (b"42", 400),
    "100,000 lists": (b"[" * 100_000, 413),
    "lists in a field": (b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}", 400),
    "200 levels": (json.dumps(nested(200)).encode(), 400),
    "1 million keys": (b"{" + b",".join(b'"k%d":1' % i for i in range(600_000)) + b"}", 413),
    "NaN": (b'{"temperature": NaN}', 400),
    "Infinity": (b'{"temperature": -Infinity}', 400),
    "1e999": (b'{"temperature": 1e999}', 400),
    "UTF-16": ('{"model": "x"}'.encode("utf-16"), 400),
    "byte order mark": (b'\xef\xbb\xbf{"model": "x"}', 404),
    "lone surrogate": (b'{"model": "\\ud800"}', 400),
    "duplicate key": (b'{"model": "a", "model": "b"}', 400),
    "34 MB": (json.dumps({"x": "y" * 34_000_000}).encode(), 413),
}
MODELS: dict[str, Any] = {
    "unknown": "another-model",
    "path": "../../etc/passwd",
    "1 MB": "m" * 1_000_000,
    "line end": "a\r\nX: y",
    "key": "a:b{c}",
    "number": 5,
    "list": ["a"],
}


OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "8 MB": ("/tokenize", {"prompt": "a " * 3_900_000}),
    "prompt a number": ("/tokenize", {"prompt": 5}),
    "nothing": ("/tokenize", {}),
    "a message of 8 MB": (
        "/tokenize",
        {"messages": [{"role": "user", "content": "a" * 8_000_000}]},
    ),
    "token -1": ("/detokenize", {"tokens": [-1]}),
    "token 2^40": ("/detokenize", {"tokens": [2**40]}),
    "tokens as text": ("/detokenize", {"tokens": "x"}),
    "no conversations": ("/v1/chat/completions/batch", {"messages": []}),
    "conversations of texts": ("/v1/chat/completions/batch", {"messages": ["x"]}),
    "600 conversations": ("/v1/chat/completions/batch", {"messages": [QUESTION] * 600}),
    "not a pooling model": ("/v1/embeddings", {"input": "x"}),
    "no scores": ("/score", {"text_1": "a", "text_2": "b"}),
    "unknown fields": ("/invocations", {"nonsense": 1}),
}
"""Of other endpoints, by name: path and fields."""


MESSAGE = {"role": "user", "content": "x"}
_ANSWER = {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed"}
_ANSWER_PART = {"type": "output_text", "text": "x", "annotations": []}
MANY_ERRORS: dict[str, tuple[str, dict[str, Any]]] = {
    "500 items": (RESPONSES, {"input": [{}] * 500}),
    "2,000 items": (RESPONSES, {"input": [{}] * 2000}),
    "10,000 items": (RESPONSES, {"input": [{}] * 10_000}),
    "10,000 parts": (RESPONSES, {"input": [{"role": "user", "content": [{}] * 10_000}]}),
    "10,000 tools": (RESPONSES, {"input": "x", "tools": [{}] * 10_000}),
    "a wrong item behind 800": (RESPONSES, {"input": [MESSAGE] * 800 + [{}]}),
    "10,000 messages": (CHAT, {"messages": [{}] * 10_000}),
    "chat's parts": (CHAT, {"messages": [{"role": "user", "content": [{"type": 1}] * 10_000}]}),
    "conversations": ("/v1/chat/completions/batch", {"messages": [[{}] * 9900] * 3}),
    "15 x 60,000 floats": (COMPLETIONS, {"prompt": [[1.5] * 60_000] * 15}),
    "300 wrong invocations": ("/invocations", {"input": [{}] * 300}),
    "Anthropic's messages": (MESSAGES, {"max_tokens": 1, "messages": [{}] * 10_000}),
}
"""Each wrong element is an error for vLLM's validation."""
TOO_SLOW: dict[str, tuple[str, dict[str, Any]]] = {
    "100,000 answers": (RESPONSES, {"input": [{**_ANSWER, "content": [_ANSWER_PART] * 100_000}]}),
    "300,000 parts": (
        RESPONSES,
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}] * 300_000}]},
    ),
}
"""Right, but it takes too long to read."""


def hostile_requests() -> Iterator[Hostile]:
    """All of them."""

    def request(name: str, path: str, body: bytes, *statuses: int, **headers: str) -> Hostile:
        names = {"content-type": "application/json"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        return Hostile(name, path, body, statuses, names)

    for name, fields in REFUSED_IN_CHAT.items():
        yield request(name, CHAT, json.dumps(SHORT | fields).encode(), 400, 413)
    for name, fields in ANY_ANSWER.items():
        yield request(name, CHAT, json.dumps(SHORT | fields).encode(), 200, 400)
    for name, prompt in PROMPTS.items():
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 2}
        yield request(f"prompt: {name}", COMPLETIONS, json.dumps(body).encode(), 400)
    for name, (raw, status) in RAW.items():
        yield request(f"body: {name}", CHAT, raw, status)
    for name, model in MODELS.items():
        yield request(
            f"model: {name}", CHAT, json.dumps(SHORT | {"model": model}).encode(), 400, 404
        )
    plain = json.dumps(SHORT).encode()
    yield request("type: text", CHAT, plain, 415, content_type="text/plain")
    yield request("type: none", CHAT, plain, 415, content_type="")
    yield request("encoding: gzip", CHAT, plain, 400, content_encoding="gzip")
    yield request("encoding: br", CHAT, plain, 415, content_encoding="br")
    yield request("key: 1 MB", CHAT, plain, 200, 401, 431, authorization="Bearer " + "k" * 200_000)
    yield request("key: quotes", CHAT, plain, 200, 401, authorization="Bearer ' OR 1=1")
    for name, fields in {
        "suffix": {"suffix": "x" * 1000},
        "echo and prompt_logprobs": {"echo": True, "logprobs": 20, "prompt": "€ß語 " * 800},
        "beams, 64": {"use_beam_search": True, "n": 64, "max_tokens": 10},
        "512 prompts": {"prompt": ["A queue is"] * 512, "max_tokens": 2},
        "64 prompts, 8 choices": {"prompt": ["A queue is"] * 64, "n": 8, "max_tokens": 4},
        "8 MB": {"prompt": "a " * 3_900_000},
    }.items():
        body = {"model": MODEL, "prompt": "x", "max_tokens": 2} | fields
        yield request(f"completions: {name}", COMPLETIONS, json.dumps(body).encode(), 200, 400)
    for name, (path, fields) in OTHERS.items():
        body = {"model": MODEL} | fields
        yield request(f"{path}: {name}", path, json.dumps(body).encode(), 400, 404)
    for name, (path, fields) in (MANY_ERRORS | TOO_SLOW).items():
        body = {"model": MODEL} | fields
        yield request(f"{path}: {name}", path, json.dumps(body).encode(), 400, 413)

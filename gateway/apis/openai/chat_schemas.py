"""The schemas of chat, completions and models in the API's description, by name."""

from __future__ import annotations

from gateway.description.schema import (
    ANYTHING,
    MAYBE_OBJECT,
    MAYBE_TEXT,
    NUMBER,
    TEXT,
    WHOLE,
    YES_NO,
    Schema,
    array,
    obj,
)

_REQUEST_FIELDS: dict[str, Schema] = {
    "model": MAYBE_TEXT | {"description": "one of GET /v1/models; without it the default"},
    "stream": YES_NO | {"default": False, "description": "server-sent events"},
    "stream_options": obj("", include_usage=YES_NO),
    "max_tokens": WHOLE,
    "temperature": NUMBER,
    "top_p": NUMBER,
    "n": WHOLE,
    "seed": WHOLE,
    "stop": {"anyOf": [TEXT, array(TEXT)]},
    "service_tier": {
        "enum": ["auto", "default", "flex", "priority", None],
        "description": "selects the lane in which the request waits; the answer names it",
    },
}
_RESPONSE_FIELDS: dict[str, Schema] = {
    "id": TEXT,
    "object": TEXT,
    "created": WHOLE,
    "model": TEXT,
    "usage": MAYBE_OBJECT,
    "service_tier": MAYBE_TEXT,
}
_CHOICE: dict[str, Schema] = {"index": WHOLE, "finish_reason": MAYBE_TEXT}

CHAT_SCHEMAS: dict[str, Schema] = {
    "ChatRequest": obj(
        "messages",
        **_REQUEST_FIELDS,
        messages=array(obj("role", role=TEXT, content={"type": ["string", "array", "null"]})),
        max_completion_tokens=WHOLE,
        tools=array(ANYTHING),
        tool_choice={"type": ["string", "object"]},
        response_format=ANYTHING,
        logprobs=YES_NO,
        top_logprobs=WHOLE,
    )
    | {
        "description": "vLLM's fields; unknown ones are ignored, as by vLLM.",
        "example": {
            "model": "flotilla-demo",
            "messages": [{"role": "user", "content": "What is Flotilla?"}],
        },
    },
    "ChatCompletion": obj(
        "id object created model choices",
        **_RESPONSE_FIELDS,
        choices=array(
            obj(
                "index message finish_reason",
                **_CHOICE,
                message=obj("role", role=TEXT, content=MAYBE_TEXT),
            )
        ),
    ),
    "BatchChatRequest": obj(
        "messages",
        **_REQUEST_FIELDS,
        messages=array(array(obj("role", role=TEXT))),
        max_completion_tokens=WHOLE,
        response_format=ANYTHING,
    )
    | {"description": "`messages` is a list of conversations; no streams, no tools, `n` is 1."},
    "CompletionRequest": obj(
        "prompt",
        **_REQUEST_FIELDS,
        prompt={"anyOf": [TEXT, {"type": "array"}]},
        logprobs=WHOLE,
        echo=YES_NO,
    )
    | {
        "description": "vLLM's fields; unknown ones are ignored, as by vLLM.",
        "example": {"model": "flotilla-demo", "prompt": "What is Flotilla?"},
    },
    "Completion": obj(
        "id object created model choices",
        **_RESPONSE_FIELDS,
        choices=array(obj("index text finish_reason", **_CHOICE, text=TEXT)),
    ),
}

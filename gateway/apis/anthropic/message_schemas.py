"""The schemas of Anthropic's bodies in the API's description."""

from __future__ import annotations

from gateway.description.schema import (
    ANYTHING,
    MAYBE_TEXT,
    NUMBER,
    TEXT,
    WHOLE,
    YES_NO,
    Schema,
    array,
    obj,
)

_CONTENT: Schema = {"anyOf": [TEXT, array(ANYTHING)]}
_MODEL: Schema = TEXT | {"description": "one of GET /v1/models"}
_MESSAGES = array(
    obj("role content", role={"enum": ["user", "assistant", "system"]}, content=_CONTENT)
)
_EXAMPLE = {
    "model": "flotilla-demo",
    "messages": [{"role": "user", "content": "What is Flotilla?"}],
}

MESSAGE_SCHEMAS: dict[str, Schema] = {
    "AnthropicError": obj(
        "type error",
        type={"const": "error"},
        error=obj("type message", type=TEXT, message=TEXT, code=TEXT),
    ),
    "MessagesRequest": obj(
        "model messages max_tokens",
        model=_MODEL,
        messages=_MESSAGES,
        max_tokens=WHOLE,
        system=_CONTENT,
        stop_sequences=array(TEXT),
        stream=YES_NO | {"default": False, "description": "server-sent events"},
        temperature=NUMBER,
        top_k=WHOLE,
        top_p=NUMBER,
        tools=array(ANYTHING),
        tool_choice=ANYTHING,
        thinking=ANYTHING,
        output_config=ANYTHING,
        metadata=ANYTHING,
    )
    | {
        "description": "Anthropic's fields, as far as vLLM has them; others are ignored.",
        "example": {**_EXAMPLE, "max_tokens": 64},
    },
    "Message": obj(
        "id type role content model usage",
        id=TEXT,
        type={"const": "message"},
        role={"const": "assistant"},
        content=array(obj("type", type=TEXT, text=TEXT)),
        model=TEXT,
        stop_reason=MAYBE_TEXT,
        stop_sequence=MAYBE_TEXT,
        usage=obj("input_tokens output_tokens", input_tokens=WHOLE, output_tokens=WHOLE),
    ),
    "CountTokensRequest": obj(
        "model messages",
        model=_MODEL,
        messages=_MESSAGES,
        system=_CONTENT,
        tools=array(ANYTHING),
        tool_choice=ANYTHING,
        thinking=ANYTHING,
        output_config=ANYTHING,
    )
    | {"example": _EXAMPLE},
    "CountTokens": obj("input_tokens", input_tokens=WHOLE, context_management=ANYTHING),
}

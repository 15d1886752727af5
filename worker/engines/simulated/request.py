"""Requests to the simulated engine: their fields.

Fields that vLLM implements and this engine does not (`echo`, structured output, prompt logprobs)
are refused with 400 rather than ignored. Unknown fields are ignored, as in vLLM.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from worker.engines.simulated.generation import Prompt
from worker.engines.simulated.refusal import RefusedError, bad_value, invalid_body

_MAX_STOPS = 4
_NOT_SIMULATED = (
    "echo",
    "logprob_token_ids",
    "prompt_logprobs",
    "structured_outputs",
    "suffix",
    "use_beam_search",
)


class StreamOptions(BaseModel):
    """OpenAI's `stream_options`."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class Body(BaseModel):
    """The fields that all requests for generated text have."""

    model: str | None = None
    frequency_penalty: float | None = None
    max_tokens: int | None = None
    n: int | None = 1
    presence_penalty: float | None = None
    response_format: dict[str, Any] | None = None
    seed: int | None = None
    stop: str | Annotated[list[str], Field(max_length=_MAX_STOPS)] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    # vLLM's own, for load tests.
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    min_tokens: int = 0
    request_id: str = ""
    return_token_ids: bool | None = None


class Message(BaseModel):
    """One message of a conversation."""

    role: str
    content: str | list[dict[str, Any]] | None = None

    def text(self) -> str:
        """The text of all parts."""
        if isinstance(self.content, list):
            return "\n".join(str(part["text"]) for part in self.content if "text" in part)
        return self.content or ""


class ChatBody(Body):
    """A chat completion request."""

    messages: list[Message]
    logprobs: bool | None = False
    top_logprobs: Annotated[int, BeforeValidator(lambda value: value or 0)] = 0
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None

    def prompt(self) -> Prompt:
        """The conversation as one prompt. Raises RefusedError."""
        if not self.messages:
            raise RefusedError(
                "Cannot apply chat template to an empty conversation. Provide at least one message."
            )
        return conversation_prompt(self.messages)

    def check_tools(self) -> None:
        """Raise RefusedError as vLLM with a tool parser, and for a tool that has to be called."""
        if self.tools == []:
            message = (
                "`tools` must not be an empty array. "
                "Either provide at least one tool or omit the field entirely."
            )
            raise bad_value(message, "tools")
        if self.tool_choice in (None, "none"):
            return
        if self.tools is None:
            raise bad_value("When using `tool_choice`, `tools` must be set.", "tool_choice")
        if self.tool_choice != "auto":
            chosen = json.dumps(self.tool_choice)
            raise RefusedError(f"tool_choice={chosen} requires --tool-call-parser to be set")

    def check_logprobs(self) -> None:
        """Raise RefusedError if the fields for logprobs contradict each other."""
        if self.top_logprobs < -1:
            message = "`top_logprobs` must be a positive value or -1."
            raise bad_value(message, "top_logprobs", self.top_logprobs)
        if self.top_logprobs and not self.logprobs:
            message = "when using `top_logprobs`, `logprobs` must be set to true."
            raise bad_value(message, "top_logprobs")


class BatchChatBody(Body):
    """A request for the answers to several conversations."""

    messages: Annotated[list[Annotated[list[Message], Field(min_length=1)]], Field(min_length=1)]
    max_completion_tokens: int | None = None

    def prompts(self) -> list[Prompt]:
        """One for each conversation. Raises RefusedError."""
        if self.n not in (None, 1):
            message = "Batch chat completions do not support `n > 1`. Please set `n` to 1."
            raise bad_value(message, "n", self.n)
        return [conversation_prompt(conversation) for conversation in self.messages]


class CompletionBody(Body):
    """A completion request."""

    prompt: list[int] | list[list[int]] | str | list[str] | None = None
    logprobs: int | None = None
    n: int = 1

    def prompts(self) -> list[Prompt]:
        """The prompts, at least one. Raises RefusedError."""
        if self.prompt is None or self.prompt == "":
            message = "Either prompt or prompt_embeds must be provided and non-empty."
            raise bad_value(message, "prompt")
        if not self.prompt:
            raise RefusedError("You must pass at least one prompt")
        if isinstance(self.prompt, str):
            return [Prompt(self.prompt)]
        ids = [item for item in self.prompt if isinstance(item, int)]
        return [_given(ids)] if ids else [_given(item) for item in self.prompt]


def conversation_prompt(messages: list[Message]) -> Prompt:
    """A conversation as one prompt."""
    return Prompt("\n".join(f"{message.role}: {message.text()}" for message in messages))


def _given(prompt: Any) -> Prompt:
    if isinstance(prompt, str):
        return Prompt(prompt)
    return Prompt(" ".join(map(str, prompt)), tuple(prompt))


BodyT = TypeVar("BodyT", bound=Body)
AnyBodyT = TypeVar("AnyBodyT", bound=BaseModel)


def parse(body_type: type[BodyT], content_type: str, raw: bytes) -> BodyT:
    """Parse a request; raises RefusedError where vLLM does so before it checks the model's name."""
    data = _load(content_type, raw)
    body = _validate(body_type, data)
    if body.stream_options is not None and not body.stream:
        raise bad_value("Stream options can only be defined when `stream=True`.", "stream_options")
    for name in _NOT_SIMULATED:
        if data.get(name):
            raise bad_value(f"The simulated engine has no `{name}`.", name)
    if (body.response_format or {"type": "text"}).get("type") != "text":
        raise bad_value("The simulated engine has no `response_format`.", "response_format")
    return body


def parse_as(body_type: type[AnyBodyT], content_type: str, raw: bytes) -> AnyBodyT:
    """The body as its type; raises RefusedError as FastAPI does for vLLM."""
    return _validate(body_type, _load(content_type, raw))


def _load(content_type: str, raw: bytes) -> Any:
    """The JSON of a body. Raises RefusedError."""
    if content_type.lower().partition(";")[0] != "application/json":
        raise invalid_body(["Unsupported Media Type: Only 'application/json' is allowed"])
    if not raw:
        raise invalid_body([{"type": "missing", "loc": (), "msg": "Field required", "input": None}])
    try:
        return json.loads(raw)
    except json.JSONDecodeError as error:
        fault = {"type": "json_invalid", "loc": (error.pos,), "msg": "JSON decode error"}
        raise invalid_body([{**fault, "input": {}, "ctx": {"error": error.msg}}]) from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise RefusedError("There was an error parsing the body") from error


def _validate(body_type: type[AnyBodyT], data: Any) -> AnyBodyT:
    try:
        return body_type.model_validate(data, from_attributes=True)
    except ValidationError as error:
        raise invalid_body(error.errors(include_url=False)) from error

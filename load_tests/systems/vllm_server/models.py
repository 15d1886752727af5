"""vLLM 0.32's pydantic classes of a chat completion's answer, and how its server fills them."""

from __future__ import annotations

import logging
import time
import uuid
from typing import Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from worker.engines.simulated.generation import Delta

_log = logging.getLogger(__name__)


class OpenAIBaseModel(BaseModel):
    """vLLM's base class: extra fields are allowed, and searched whenever a dict is validated."""

    model_config = ConfigDict(extra="allow")
    field_names: ClassVar[set[str] | None] = None

    @model_validator(mode="wrap")
    @classmethod
    def _log_extra_fields(
        cls, data: Any, handler: ModelWrapValidatorHandler[OpenAIBaseModel]
    ) -> OpenAIBaseModel:
        result = handler(data)
        if not isinstance(data, dict):
            return result
        if cls.field_names is None:
            cls.field_names = set(cls.model_fields)
        if extra := data.keys() - cls.field_names:
            _log.debug("ignored: %s", extra)
        return result


class DeltaMessage(OpenAIBaseModel):
    """What a chunk adds to the message."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] = Field(default_factory=list)

    @model_serializer(mode="wrap")
    def _serialize(self, handler: SerializerFunctionWrapHandler) -> Any:
        data = handler(self)
        if len(data.get("tool_calls", [])) == 0:
            data.pop("tool_calls", None)
        return data


class StreamChoice(OpenAIBaseModel):
    """A choice of a chunk."""

    index: int
    delta: SerializeAsAny[DeltaMessage]
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None


class UsageInfo(OpenAIBaseModel):
    """Token counts."""

    prompt_tokens: int = 0
    total_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: dict[str, Any] | None = None
    completion_tokens_details: dict[str, Any] | None = None


class StreamChunk(OpenAIBaseModel):
    """A chunk of a streamed answer."""

    id: str = Field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int = Field(default_factory=lambda: int(time.time()))
    model: str
    choices: list[StreamChoice]
    usage: UsageInfo | None = None
    system_fingerprint: str | None = None
    prompt_token_ids: list[int] | None = None
    prompt_text: str | None = None
    metrics: dict[str, Any] | None = None


class ChatMessage(OpenAIBaseModel):
    """The message of an answer that is not streamed."""

    role: str
    content: str | None = None
    refusal: str | None = None
    annotations: dict[str, Any] | None = None
    audio: dict[str, Any] | None = None
    function_call: dict[str, Any] | None = None
    tool_calls: list[Any] = Field(default_factory=list)
    reasoning: str | None = None


class Choice(OpenAIBaseModel):
    """A choice of an answer that is not streamed."""

    index: int
    message: SerializeAsAny[ChatMessage]
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = "stop"
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    routed_experts: str | None = None


class ChatCompletion(OpenAIBaseModel):
    """An answer that is not streamed."""

    id: str = Field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    object: Literal["chat.completion"] = "chat.completion"
    created: int = Field(default_factory=lambda: int(time.time()))
    model: str
    choices: list[Choice]
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = None
    system_fingerprint: str | None = None
    usage: UsageInfo
    prompt_logprobs: list[Any] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_text: str | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None


def first_chunk(answer_id: str, created: int, model: str) -> StreamChunk:
    """Return the first chunk of a stream, which has only the role."""
    choice = StreamChoice(
        index=0,
        delta=DeltaMessage(role="assistant", content=""),
        logprobs=None,
        finish_reason=None,
    )
    return StreamChunk(
        id=answer_id,
        object="chat.completion.chunk",
        created=created,
        choices=[choice],
        model=model,
        prompt_token_ids=None,
        prompt_text=None,
    )


def token_chunk(answer_id: str, created: int, model: str, delta: Delta) -> StreamChunk:
    """Return the chunk of one token."""
    message = DeltaMessage(content=delta.text)
    if delta.finish_reason is None:
        choice = StreamChoice(
            index=0, delta=message, logprobs=None, finish_reason=None, token_ids=None
        )
    else:
        choice = StreamChoice(
            index=0,
            delta=message,
            logprobs=None,
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason,
            token_ids=None,
        )
    chunk = StreamChunk(
        id=answer_id,
        object="chat.completion.chunk",
        created=created,
        choices=[choice],
        model=model,
    )
    if delta.finish_reason is not None:
        chunk.system_fingerprint = model
    return chunk


def whole_answer(
    answer_id: str,
    model: str,
    text: str,
    finish_reason: str | None,
    n_prompt: int,
    n_generated: int,
) -> ChatCompletion:
    """Return an answer that is not streamed."""
    message = ChatMessage(role="assistant", reasoning=None, content=text)
    choice = Choice(
        index=0,
        message=message,
        logprobs=None,
        finish_reason=finish_reason or "stop",
        stop_reason=None,
        token_ids=None,
        routed_experts=None,
    )
    usage = UsageInfo(
        prompt_tokens=n_prompt,
        completion_tokens=n_generated,
        total_tokens=n_prompt + n_generated,
        completion_tokens_details=None,
    )
    usage.prompt_tokens_details = None
    return ChatCompletion(
        id=answer_id,
        created=int(time.time()),
        model=model,
        choices=[choice],
        usage=usage,
        system_fingerprint=model,
        prompt_logprobs=None,
        prompt_token_ids=None,
        prompt_text=None,
        kv_transfer_params=None,
        ec_transfer_params=None,
        metrics=None,
    )

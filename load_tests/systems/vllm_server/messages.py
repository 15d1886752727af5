"""The types of messages in a request to vLLM 0.32 (`renderers/chat_utils.py`).

pydantic validates each message against every type.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, Required, TypeAlias

from openai.types.chat import (
    ChatCompletionContentPartInputAudioParam,
    ChatCompletionContentPartParam,
    ChatCompletionContentPartRefusalParam,
    ChatCompletionFunctionToolParam,
    ChatCompletionMessageParam,
    ChatCompletionMessageToolCallParam,
)
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

_Embeddings: TypeAlias = str | dict[str, str | list[int | float]]


class _Url(TypedDict, total=False):
    url: Required[str]


class _AudioPart(TypedDict, total=False):
    audio_url: Required[_Url]
    type: Required[Literal["audio_url"]]


class _VideoPart(TypedDict, total=False):
    video_url: Required[_Url]
    type: Required[Literal["video_url"]]


class _ImageEmbeddingsPart(TypedDict, total=False):
    image_embeds: _Embeddings | None
    type: Required[Literal["image_embeds"]]
    uuid: str | None


class _AudioEmbeddingsPart(TypedDict, total=False):
    audio_embeds: _Embeddings | None
    type: Required[Literal["audio_embeds"]]
    uuid: str | None


class _VideoEmbeddingsPart(TypedDict, total=False):
    video_embeds: _Embeddings | None
    type: Required[Literal["video_embeds"]]
    uuid: str | None


class _PromptEmbeddingsPart(TypedDict, total=False):
    data: Required[str]
    type: Required[Literal["prompt_embeds"]]


class _SimpleImagePart(TypedDict, total=False):
    image_url: str | None
    uuid: str | None


class _SimpleAudioPart(TypedDict, total=False):
    audio_url: str | None


class _SimpleVideoPart(TypedDict, total=False):
    video_url: str | None
    uuid: str | None


class _ToolReferencePart(TypedDict, total=False):
    name: str
    type: Literal["tool_reference"]


class _ThinkingPart(TypedDict, total=False):
    thinking: Required[str]
    closed: bool
    type: Required[Literal["thinking"]]


_Part: TypeAlias = (
    ChatCompletionContentPartParam
    | _AudioPart
    | ChatCompletionContentPartInputAudioParam
    | _VideoPart
    | ChatCompletionContentPartRefusalParam
    | _SimpleImagePart
    | _ImageEmbeddingsPart
    | _AudioEmbeddingsPart
    | _VideoEmbeddingsPart
    | _PromptEmbeddingsPart
    | _SimpleAudioPart
    | _SimpleVideoPart
    | _ToolReferencePart
    | str
    | _ThinkingPart
)


class _CustomMessage(TypedDict, total=False):
    """Any role."""

    role: Required[str]
    content: str | list[_Part]
    name: str
    tool_call_id: str | None
    tool_calls: list[ChatCompletionMessageToolCallParam] | None
    reasoning: str | None
    tools: list[ChatCompletionFunctionToolParam] | None
    task: str | None


class _HarmonyRole(StrEnum):
    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"
    DEVELOPER = "developer"
    TOOL = "tool"


class _HarmonyAuthor(BaseModel):
    role: _HarmonyRole
    name: str | None = None


class _HarmonyMessage(BaseModel):
    """gpt-oss' own format."""

    author: _HarmonyAuthor
    content: list[dict[str, Any]] = Field(default_factory=list)
    channel: str | None = None
    recipient: str | None = None
    content_type: str | None = None


Message: TypeAlias = ChatCompletionMessageParam | _CustomMessage | _HarmonyMessage

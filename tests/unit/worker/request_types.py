"""The types of vLLM's request models, taken apart: all names in them."""

from __future__ import annotations

import types
from collections.abc import Iterator
from importlib import import_module
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
)

from pydantic import BaseModel
from typing_extensions import get_type_hints, is_typeddict

from shared.api.endpoints import ENDPOINTS

_MODELS = {
    "/v1/chat/completions": "openai.chat_completion.protocol:ChatCompletionRequest",
    "/v1/chat/completions/batch": "openai.chat_completion.protocol:BatchChatCompletionRequest",
    "/v1/responses": "openai.responses.protocol:ResponsesRequest",
    "/v1/completions": "openai.completion.protocol:CompletionRequest",
    "/v1/messages": "anthropic.protocol:AnthropicMessagesRequest",
    "/v1/messages/count_tokens": "anthropic.protocol:AnthropicCountTokensRequest",
    "/v1/embeddings": "pooling.embed.protocol:EmbeddingRequest",
    "/v2/embed": "pooling.embed.protocol:CohereEmbedRequest",
    "/pooling": "pooling.pooling.protocol:PoolingRequest",
    "/classify": "pooling.classify.protocol:ClassificationRequest",
    "/score": "pooling.scoring.protocol:ScoreRequest",
    "/v1/score": "pooling.scoring.protocol:ScoreRequest",
    "/rerank": "pooling.scoring.protocol:RerankRequest",
    "/v1/rerank": "pooling.scoring.protocol:RerankRequest",
    "/v2/rerank": "pooling.scoring.protocol:RerankRequest",
    "/tokenize": "serve.tokenize.protocol:TokenizeRequest",
    "/detokenize": "serve.tokenize.protocol:DetokenizeRequest",
    "/generative_scoring": "generate.generative_scoring.serving:GenerativeScoringRequest",
    "/v1/systemone": "generate.structured_decisions.protocol:StructuredDecisionRequest",
}
PATHS = [path for path in ENDPOINTS if not path.startswith("/v1/audio") and path != "/invocations"]
"""Those with a body in JSON of a type of its own."""


def request_type(path: str) -> Any:
    """vLLM's type of the bodies of an endpoint."""
    module, _, name = _MODELS[path].partition(":")
    return getattr(import_module(f"vllm.entrypoints.{module}"), name)


def branches(kind: Any) -> Iterator[Any]:
    """The types that a value of this type may have; no union is left."""
    origin = get_origin(kind)
    if origin in (Annotated, Required, NotRequired):
        yield from branches(get_args(kind)[0])
    elif origin in (Union, types.UnionType):
        for each in get_args(kind):
            yield from branches(each)
    elif hasattr(kind, "__value__"):
        yield from branches(kind.__value__)
    else:
        yield kind


def fields_of(kind: Any) -> dict[str, tuple[Any, bool]]:
    """The fields of an object's type, each with its type and whether it is required."""
    if is_typeddict(kind):
        hints = get_type_hints(kind, include_extras=True)
        return {name: (hint, get_origin(hint) is Required) for name, hint in hints.items()}
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {
            field.alias or name: (field.annotation, field.is_required())
            for name, field in kind.model_fields.items()
        }
    return {}


def names_of(kind: Any, seen: set[Any] | None = None) -> set[str]:
    """The names of all fields of a type and of what is in it, and the `type`s of its objects."""
    seen = set() if seen is None else seen
    found: set[str] = set()
    for each in branches(kind):
        if isinstance(each, type):
            if each in seen:
                continue
            seen.add(each)
        for name, (hint, _) in fields_of(each).items():
            found.add(name)
            if name == "type":
                found |= {
                    f"type={word}"
                    for branch in branches(hint)
                    if get_origin(branch) is Literal
                    for word in get_args(branch)
                }
            found |= names_of(hint, seen)
        for inner in get_args(each) if get_origin(each) is not Literal else ():
            found |= names_of(inner, seen)
    return found

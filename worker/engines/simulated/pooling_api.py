"""The simulated engine's routes for embeddings, classes, scores and tokens."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from worker.engines.simulated import pooling_response as answers
from worker.engines.simulated.generation import TOKENS, Prompt
from worker.engines.simulated.pooling_request import (
    CohereEmbedBody,
    DecisionBody,
    DetokenizeBody,
    InputBody,
    ItemsBody,
    RerankBody,
    ScoreBody,
    TokenizeBody,
    pairs,
)
from worker.engines.simulated.pooling_response import PoolingResponse
from worker.engines.simulated.request import parse_as

_BodyT = TypeVar("_BodyT", bound=BaseModel)


class Call(NamedTuple):
    """A request, and what the engine knows of itself."""

    headers: Headers
    raw: bytes
    model: str
    max_model_len: int
    response_id: Callable[[Any, Headers], str]
    """Checks the body's model, and gives the response's id without its prefix."""

    def parse(self, body_type: type[_BodyT], prefix: str) -> tuple[_BodyT, str]:
        """The body and the response's id. Raises RefusedError."""
        body = parse_as(body_type, self.headers.get("content-type", ""), self.raw)
        return body, f"{prefix}-{self.response_id(body, self.headers)}"


def _embeddings(call: Call) -> PoolingResponse:
    body, name = call.parse(InputBody, "embd")
    return _encoded(call, body, name, "embedding")


def _pooling(call: Call) -> PoolingResponse:
    body, name = call.parse(InputBody, "pooling")
    return _encoded(call, body, name, "pooling")


def _encoded(call: Call, body: InputBody, name: str, kind: str) -> PoolingResponse:
    prompts = body.prompts()
    return PoolingResponse(
        prompts,
        call.max_model_len,
        lambda: answers.embeddings(name, call.model, prompts, body.encoding_format, kind),
    )


def _cohere(call: Call) -> PoolingResponse:
    body, name = call.parse(CohereEmbedBody, "embd")
    prompts, kinds = body.prompts(), list(body.embedding_types or ["float"])
    return PoolingResponse(
        prompts, call.max_model_len, lambda: answers.cohere_embeddings(name, prompts, kinds)
    )


def _classify(call: Call) -> PoolingResponse:
    body, name = call.parse(InputBody, "classify")
    prompts = body.prompts()
    return PoolingResponse(
        prompts, call.max_model_len, lambda: answers.classes(name, call.model, prompts)
    )


def _score(call: Call) -> PoolingResponse:
    body, name = call.parse(ScoreBody, "score")
    given = body.pairs()
    prompts = [Prompt(first + second) for first, second in given]
    values = [answers.score(first, second) for first, second in given]
    return PoolingResponse(
        prompts, call.max_model_len, lambda: answers.scores(name, call.model, values, prompts)
    )


def _rerank(call: Call) -> PoolingResponse:
    body, name = call.parse(RerankBody, "score")
    documents = body.documents if isinstance(body.documents, list) else [body.documents]
    given = pairs(body.query, body.documents)
    prompts = [Prompt(first + second) for first, second in given]
    values = [answers.score(first, second) for first, second in given]
    return PoolingResponse(
        prompts,
        call.max_model_len,
        lambda: answers.ranking(name, call.model, documents, values, body.top_n, prompts),
    )


def _tokenize(call: Call) -> PoolingResponse:
    body, _ = call.parse(TokenizeBody, "tokenize")
    ids = body.given().token_ids
    answer = {
        "count": len(ids),
        "max_model_len": call.max_model_len,
        "tokens": ids,
        "token_strs": list(map(str, ids)) if body.return_token_strs else None,
    }
    return PoolingResponse([], call.max_model_len, lambda: JSONResponse(answer))


def _detokenize(call: Call) -> PoolingResponse:
    body, _ = call.parse(DetokenizeBody, "tokenize")
    text = "".join(TOKENS[token % len(TOKENS)] for token in body.tokens)
    return PoolingResponse([], call.max_model_len, lambda: JSONResponse({"prompt": text}))


def _items(call: Call) -> PoolingResponse:
    body, name = call.parse(ItemsBody, "generative-scoring")
    prompts = body.prompts()
    values = [prompt.digest % 1000 / 1000 for prompt in prompts]
    return PoolingResponse(
        prompts, call.max_model_len, lambda: answers.scores(name, call.model, values, prompts)
    )


def _decisions(call: Call) -> PoolingResponse:
    body, name = call.parse(DecisionBody, "decision")
    prompts = body.prompts()
    given = zip(body.questions, prompts, strict=True)
    found = {question: prompt.digest % 1000 / 1000 for question, prompt in given}
    answer = {
        "id": name,
        "object": "structured_decision",
        "created": int(time.time()),
        "model": call.model,
        "answers": {question: {"probability": share} for question, share in found.items()},
        "usage": {
            "input_tokens": sum(prompt.n_tokens for prompt in prompts),
            "output_tokens": len(prompts),
        },
        "diagnostics": {
            question: {"label_mass": math.sqrt(share), "argmax_is_label": True}
            for question, share in found.items()
        },
    }
    return PoolingResponse(prompts, call.max_model_len, lambda: JSONResponse(answer))


POOLING: dict[str, Callable[[Call], PoolingResponse]] = {
    "/v1/embeddings": _embeddings,
    "/v2/embed": _cohere,
    "/pooling": _pooling,
    "/classify": _classify,
    "/score": _score,
    "/v1/score": _score,
    "/rerank": _rerank,
    "/v1/rerank": _rerank,
    "/v2/rerank": _rerank,
    "/tokenize": _tokenize,
    "/detokenize": _detokenize,
    "/generative_scoring": _items,
    "/v1/systemone": _decisions,
}
"""By route of the engine."""


def invocation(fields: object) -> str:
    """The route whose body this is, for /invocations: the first that vLLM would find."""
    given = fields if isinstance(fields, dict) else {}
    for name, route in (
        ("messages", "/v1/chat/completions"),
        ("prompt", "/v1/completions"),
        ("input", "/v1/embeddings"),
        ("query", "/rerank"),
    ):
        if name in given:
            return route
    return "/score"

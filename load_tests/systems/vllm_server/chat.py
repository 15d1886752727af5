"""vLLM 0.32's chat completion over the simulated engine, with the work of `OpenAIServingChat`.

After `entrypoints/openai/chat_completion/{api_router,serving}.py`: one task for the handler and one
for the client's disconnect, one pydantic chunk per token from an async generator.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel
from starlette.responses import Response

from load_tests.systems.engine import MODEL
from load_tests.systems.vllm_server.app import build_app
from load_tests.systems.vllm_server.models import (
    ChatCompletion,
    UsageInfo,
    first_chunk,
    token_chunk,
    whole_answer,
)
from load_tests.systems.vllm_server.request import ChatRequest
from shared.platform.settings import load_settings
from worker.engines.simulated.engine import SimulatedEngine
from worker.engines.simulated.generation import Delta, Generation, Prompt

_HEADERS = (
    "endpoint-load-metrics-format",
    "traceparent",
    "tracestate",
    "x-data-parallel-rank",
    "x-session-id",
    "x-vllm-priority",
)
"""Headers that vLLM looks up for each request."""

Handler = Callable[[ChatRequest, Request], Awaitable[Response]]
router = APIRouter()


class RequestMetadata(BaseModel):
    """Stored in the request's state for middleware."""

    request_id: str
    final_usage_info: UsageInfo | None = None


async def _must_be_json(raw_request: Request) -> None:
    content_type = raw_request.headers.get("content-type", "").lower()
    if content_type.split(";", maxsplit=1)[0] != "application/json":
        raise RequestValidationError(["Unsupported Media Type: only 'application/json' is allowed"])


def _with_cancellation(handler: Handler) -> Callable[..., Awaitable[Response | None]]:
    """Run the handler in a task and wait for a disconnect in another; the first ends both."""

    @functools.wraps(handler)
    async def wrapper(chat_request: ChatRequest, raw_request: Request) -> Response | None:
        handling = asyncio.ensure_future(handler(chat_request, raw_request))
        leaving = asyncio.create_task(_disconnect(raw_request))
        done, pending = await asyncio.wait([handling, leaving], return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        return handling.result() if handling in done else None

    return wrapper


async def _disconnect(raw_request: Request) -> None:
    while (await raw_request.receive())["type"] != "http.disconnect":
        pass


@router.post("/v1/chat/completions", dependencies=[Depends(_must_be_json)], response_model=None)
@_with_cancellation
async def chat(chat_request: ChatRequest, raw_request: Request) -> Response:
    """Answer a chat completion request, streamed or not."""
    headers = raw_request.headers
    answer_id = f"chatcmpl-{headers.get('x-request-id') or chat_request.request_id}"
    metadata = raw_request.state.request_metadata = RequestMetadata(request_id=answer_id)
    for name in _HEADERS:
        headers.get(name)
    engine: SimulatedEngine = raw_request.app.state.engine
    generation, prompt = chat_request.generation()
    if chat_request.stream:
        stream = _stream(engine, generation, answer_id, prompt, metadata)
        return StreamingResponse(stream, media_type="text/event-stream")
    answer = await _whole(engine, generation, answer_id, prompt)
    metadata.final_usage_info = answer.usage
    return JSONResponse(answer.model_dump())


async def _stream(
    engine: SimulatedEngine,
    generation: Generation,
    answer_id: str,
    prompt: Prompt,
    metadata: RequestMetadata,
) -> AsyncGenerator[str, None]:
    created = int(time.time())
    text, n_generated = "", 0
    engine.submit(generation)
    try:
        while deltas := await generation.next_deltas():
            if not n_generated:
                chunk = first_chunk(answer_id, created, MODEL)
                yield f"data: {chunk.model_dump_json(exclude_unset=True)}\n\n"
            for delta in deltas:
                text += delta.text
                n_generated += len(delta.token_ids)
                chunk = token_chunk(answer_id, created, MODEL, delta)
                yield f"data: {chunk.model_dump_json(exclude_unset=True)}\n\n"
        metadata.final_usage_info = UsageInfo(
            prompt_tokens=prompt.n_tokens,
            completion_tokens=n_generated,
            total_tokens=prompt.n_tokens + n_generated,
            completion_tokens_details=None,
        )
        yield "data: [DONE]\n\n"
    finally:
        engine.abort(generation)


async def _whole(
    engine: SimulatedEngine, generation: Generation, answer_id: str, prompt: Prompt
) -> ChatCompletion:
    engine.submit(generation)
    deltas: list[Delta] = []
    while some := await generation.next_deltas():
        deltas += some
    text = "".join(delta.text for delta in deltas)
    reason = deltas[-1].finish_reason
    return whole_answer(answer_id, MODEL, text, reason, prompt.n_tokens, len(deltas))


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    engine = app.state.engine = SimulatedEngine(load_settings())
    await engine.start()
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        engine.close()


def create_app() -> FastAPI:
    """Make the application; its engine starts with it."""
    return build_app(router, _lifespan)

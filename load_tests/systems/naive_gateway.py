"""The gateway of `naive`: `python -m load_tests.systems.naive_gateway PORT REDIS_URL`."""

from __future__ import annotations

import sys
import uuid
from collections.abc import AsyncGenerator

from fastapi import FastAPI
from fastapi.responses import JSONResponse, StreamingResponse
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from starlette.responses import Response
from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionRequest,
    ChatCompletionResponse,
    ChatCompletionResponseChoice,
    ChatCompletionStreamResponse,
    ChatMessage,
)
from vllm.entrypoints.serve.engine.protocol import UsageInfo

from load_tests.systems.engine import MODEL

QUEUE = "naive:queue"
DONE = b"[DONE]"
MAX_CONNECTIONS = 5000
_JOB_TTL_S = 600

app = FastAPI()


def channel(job_id: str) -> str:
    """Return the pub/sub channel of a job's chunks."""
    return f"naive:job:{job_id}"


@app.get("/health")
async def health() -> Response:
    """Answer 200."""
    return Response()


@app.post("/v1/chat/completions", response_model=None)
async def chat(chat_request: ChatCompletionRequest) -> Response:
    """Subscribe to the job's channel, queue the job, answer with its chunks."""
    redis: Redis = app.state.redis
    job_id = uuid.uuid4().hex
    subscription = redis.pubsub()
    await subscription.subscribe(channel(job_id))
    await redis.hset(f"naive:state:{job_id}", mapping={"state": "queued"})
    await redis.expire(f"naive:state:{job_id}", _JOB_TTL_S)
    body = chat_request.model_dump_json(exclude_unset=True)
    await redis.xadd(QUEUE, {"id": job_id, "body": body})
    chunks = _chunks(subscription)
    if chat_request.stream:
        return StreamingResponse(_stream(chunks), media_type="text/event-stream")
    texts, reason = [], None
    async for chunk in chunks:
        texts.append(chunk.choices[0].delta.content or "")
        reason = chunk.choices[0].finish_reason
    message = ChatMessage(role="assistant", content="".join(texts))
    n_tokens = len(texts) - 1
    answer = ChatCompletionResponse(
        id=f"chatcmpl-{job_id}",
        model=MODEL,
        choices=[ChatCompletionResponseChoice(index=0, message=message, finish_reason=reason)],
        usage=UsageInfo(completion_tokens=n_tokens, total_tokens=n_tokens),
    )
    return JSONResponse(answer.model_dump())


async def _chunks(subscription: PubSub) -> AsyncGenerator[ChatCompletionStreamResponse, None]:
    try:
        async for message in subscription.listen():
            if message["type"] != "message":
                continue
            if message["data"] == DONE:
                return
            yield ChatCompletionStreamResponse.model_validate_json(message["data"])
    finally:
        await subscription.unsubscribe()
        await subscription.aclose()  # type: ignore[no-untyped-call]


async def _stream(
    chunks: AsyncGenerator[ChatCompletionStreamResponse, None],
) -> AsyncGenerator[str, None]:
    async for chunk in chunks:
        yield f"data: {chunk.model_dump_json(exclude_unset=True)}\n\n"
    yield "data: [DONE]\n\n"


if __name__ == "__main__":
    from load_tests.systems.uvicorn_server import serve

    app.state.redis = Redis.from_url(sys.argv[2], max_connections=MAX_CONNECTIONS)
    serve(app)

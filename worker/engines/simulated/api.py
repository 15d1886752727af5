"""The simulated engine's ASGI application: vLLM's routes."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from functools import partial
from typing import Protocol

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from shared.api.endpoints import ENDPOINTS
from shared.fleet.pool import Pool
from worker.engines.interface import NO_ROUTE, Capacity
from worker.engines.simulated import operator_api
from worker.engines.simulated.audio_response import AudioResponse, read_form
from worker.engines.simulated.chat_response import BatchChatResponse, ChatResponse
from worker.engines.simulated.completion_response import CompletionResponse
from worker.engines.simulated.delivery import DEAD
from worker.engines.simulated.generation import Disconnected, EngineDeadError, Generation
from worker.engines.simulated.messages_response import (
    CountTokensBody,
    MessagesBody,
    MessagesResponse,
    count_tokens,
)
from worker.engines.simulated.model_cards import model_cards
from worker.engines.simulated.pooling_api import POOLING, Call, invocation
from worker.engines.simulated.pooling_response import PoolingResponse
from worker.engines.simulated.refusal import RefusedError
from worker.engines.simulated.request import BatchChatBody, ChatBody, CompletionBody, parse
from worker.engines.simulated.response import GenerationResponse
from worker.engines.simulated.response_request import ResponseBody
from worker.engines.simulated.responses_response import ResponsesResponse

_OWN_ROUTES = {"/v1/models": "GET", "/health": "GET"}
_AUDIO_TASKS = {
    "/v1/audio/transcriptions": "transcription",
    "/v1/audio/translations": "translation",
}
_ROUTES = {row.path: "POST" for row in ENDPOINTS.values()} | _OWN_ROUTES | operator_api.ROUTES


class Generator(Protocol):
    """The part of the engine that the application uses."""

    @property
    def dead(self) -> bool:
        """See `Engine.dead`."""

    @property
    def capacity(self) -> Capacity:
        """See `Engine.capacity`."""

    def submit(self, generation: Generation) -> None:
        """Queue the generation for the batch. Raises EngineDeadError, and Disconnected if the
        engine refuses to continue it."""

    def abort(self, generation: Generation) -> None:
        """Remove the generation's sequences from the batch."""


class Answer(Protocol):
    """The response to one request."""

    generation: Generation

    @property
    def stream(self) -> bool:
        """It is sent as server-sent events."""

    async def send_stream(self, send: Send) -> None:
        """Send it as server-sent events."""

    async def full(self) -> Response:
        """Wait for it, in one piece."""


class AnyBody(Protocol):
    """The field that all requests have."""

    @property
    def model(self) -> str | None:
        """The model's name; None: the engine's only one."""


class SimulatedApi:
    """The ASGI application of one engine."""

    def __init__(self, pool: Pool, engine: Generator, max_loras: int) -> None:
        self._root = pool.model or "simulated"
        self._names = list(pool.engine_names)
        self._name = self._names[0]
        self._engine = engine
        self._operators = operator_api.OperatorApi(self._names, max_loras)
        self._responses: dict[str, Callable[[Headers, bytes], Answer | Response]] = {
            "/v1/chat/completions": self._chat_response,
            "/v1/chat/completions/batch": self._batch_chat_response,
            "/v1/completions": self._completion_response,
            "/v1/responses": self._response,
            "/v1/messages": self._messages_response,
            "/v1/messages/count_tokens": self._count_tokens,
            "/invocations": self._invocation,
            **{path: partial(self._pooling_response, respond) for path, respond in POOLING.items()},
        }
        """By route of the engine: each row of the endpoint table needs one."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        method = _ROUTES.get(scope["path"])
        response: Response
        if scope["method"] != method:
            response = _not_served(scope, method)
        elif scope["path"] == "/health":
            response = Response(status_code=503 if self._engine.dead else 200)
        elif scope["path"] == "/v1/models":
            cards = model_cards(
                self._names,
                self._root,
                self._engine.capacity.max_model_len,
                self._operators.adapters,
            )
            response = JSONResponse(cards)
        elif scope["path"] in operator_api.ROUTES:
            try:
                response = await self._operators.answer(Request(scope, receive))
            except RefusedError as refused:
                response = refused.response
        else:
            await self._generate(scope, receive, send)
            return
        await response(scope, receive, send)

    async def _generate(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            request = Request(scope, receive)
            raw = await request.body()
            answer: Answer | Response
            if scope["path"] in _AUDIO_TASKS:
                answer = await self._audio_response(request)
            else:
                answer = self._responses[scope["path"]](request.headers, raw)
            if isinstance(answer, Response):  # without a generation
                await answer(scope, receive, send)
                return
            generation = answer.generation
            self._engine.submit(generation)
        except RefusedError as refused:
            await refused.response(scope, receive, send)
            return
        except EngineDeadError:
            await JSONResponse(DEAD, 500)(scope, receive, send)
            return
        except (ClientDisconnect, Disconnected):
            return
        watch = asyncio.create_task(
            _on_disconnect(receive, lambda: self._engine.abort(generation)), name="simulated-watch"
        )
        try:
            if answer.stream:
                await answer.send_stream(send)
            else:
                response = await answer.full()
                await response(scope, receive, send)
        finally:
            watch.cancel()
            self._engine.abort(generation)

    def _completion_response(self, headers: Headers, raw: bytes) -> GenerationResponse:
        body = parse(CompletionBody, headers.get("content-type", ""), raw)
        response_id = self._check_model(body, headers)
        max_model_len = self._engine.capacity.max_model_len
        return CompletionResponse(body, response_id, self._served(body), max_model_len)

    def _batch_chat_response(self, headers: Headers, raw: bytes) -> GenerationResponse:
        body = parse(BatchChatBody, headers.get("content-type", ""), raw)
        response_id = self._check_model(body, headers)
        max_model_len = self._engine.capacity.max_model_len
        return BatchChatResponse(body, response_id, self._served(body), max_model_len)

    def _pooling_response(
        self, respond: Callable[[Call], PoolingResponse], headers: Headers, raw: bytes
    ) -> PoolingResponse:
        max_model_len = self._engine.capacity.max_model_len
        return respond(Call(headers, raw, self._name, max_model_len, self._check_model))

    def _invocation(self, headers: Headers, raw: bytes) -> Answer | Response:
        try:
            fields = json.loads(raw)
        except ValueError:
            fields = None
        return self._responses[invocation(fields)](headers, raw)

    def _chat_response(self, headers: Headers, raw: bytes) -> GenerationResponse:
        body = parse(ChatBody, headers.get("content-type", ""), raw)
        body.check_logprobs()
        response_id = self._check_model(body, headers)
        body.check_tools()
        max_model_len = self._engine.capacity.max_model_len
        return ChatResponse(body, response_id, self._served(body), max_model_len)

    def _served(self, body: AnyBody) -> str:
        """The name that the answer gives the model: an adapter's own."""
        model = body.model
        return model if model and model in self._operators.adapters else self._name

    def _response(self, headers: Headers, raw: bytes) -> ResponsesResponse:
        body = parse(ResponseBody, headers.get("content-type", ""), raw)
        body.check()
        self._check_model(body, headers)
        return ResponsesResponse(body, self._served(body), self._engine.capacity.max_model_len)

    def _messages_response(self, headers: Headers, raw: bytes) -> MessagesResponse:
        body = parse(MessagesBody, headers.get("content-type", ""), raw)
        response_id = self._check_model(body, headers)
        max_model_len = self._engine.capacity.max_model_len
        return MessagesResponse(body, response_id, self._name, max_model_len)

    def _count_tokens(self, headers: Headers, raw: bytes) -> Response:
        body = parse(CountTokensBody, headers.get("content-type", ""), raw)
        self._check_model(body, headers)
        return count_tokens(body)

    async def _audio_response(self, request: Request) -> AudioResponse:
        task = _AUDIO_TASKS[request.url.path]
        async with request.form() as form:
            body, data = await read_form(form)
        response_id = self._check_model(body, request.headers)
        max_model_len = self._engine.capacity.max_model_len
        return AudioResponse(task, body, data, response_id, self._name, max_model_len)

    def _check_model(self, body: AnyBody, headers: Headers) -> str:
        if body.model and body.model not in {*self._names, *self._operators.adapters}:
            names = ", ".join(self._names)
            message = f"The model `{body.model}` does not exist. Valid aliases: {names}."
            raise RefusedError(message, "model", kind="NotFoundError", status=404)
        given = getattr(body, "request_id", "")
        return headers.get("x-request-id") or given or uuid.uuid4().hex[:16]


def _not_served(scope: Scope, allowed: str | None) -> Response:
    """VLLM's answer to a request for another route; `allowed`: the path's method."""
    status, kind, why = 404, "NotFoundError", "Not Found"
    headers = None
    if allowed:
        status, kind, why = 405, "MethodNotAllowedError", "Method Not Allowed"
        headers = {"allow": allowed}
    message = f"{NO_ROUTE} {scope['method']} {scope['path']}: {why}"
    return RefusedError(message, kind=kind, status=status, headers=headers).response


async def _on_disconnect(receive: Receive, then: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    then()

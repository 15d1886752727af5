"""The simulated engine's ASGI application: the routes of the endpoint table and of operators.

LoRA adapters have names and paths, nothing else: their answers are those of the base model. A path
that begins with `missing` can't be loaded.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable
from typing import Any, Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from shared.api.endpoints import ENDPOINTS
from shared.api.operator_actions import ACTIONS, LOAD_ADAPTER, UNLOAD_ADAPTER
from shared.fleet.pool import Pool
from worker.engines.interface import NO_ROUTE, Engine
from worker.engines.simulated.canned_answers import CANNED
from worker.engines.simulated.choice_answers import ChatAnswer, CompletionAnswer
from worker.engines.simulated.event_answers import MessagesAnswer, ResponsesAnswer
from worker.engines.simulated.generation import Disconnected, EngineDeadError, Generation
from worker.engines.simulated.text_answer import DEAD, TextAnswer
from worker.engines.simulated.text_request import RefusedError, parse

_OPERATIONS = {each.engine_path: each.method for each in ACTIONS.values() if each.engine_path}
_METHODS = {
    **_OPERATIONS,
    **dict.fromkeys(ENDPOINTS, "POST"),
    **dict.fromkeys(("/v1/models", "/health"), "GET"),
}
"""By path."""
_TEXT: dict[str, type[TextAnswer]] = {
    "/v1/chat/completions": ChatAnswer,
    "/v1/chat/completions/batch": ChatAnswer,
    "/v1/completions": CompletionAnswer,
    "/invocations": ChatAnswer,
    "/v1/messages": MessagesAnswer,
    "/v1/responses": ResponsesAnswer,
}
"""By path; the others have canned answers."""


class Generator(Engine, Protocol):
    """An engine with a batch of generations."""

    def submit(self, generation: Generation) -> None:
        """Raises EngineDeadError, and Disconnected if the engine refuses to continue it."""

    def abort(self, generation: Generation) -> None:
        """Remove the generation's sequences from the batch."""

    async def operate(self) -> None:
        """Take the time of an operator's call."""


class SimulatedApi:
    """The ASGI application of one engine."""

    def __init__(self, pool: Pool, engine: Generator) -> None:
        self._root = pool.model or "simulated"
        self._names = pool.engine_names
        self._adapters: dict[str, str] = {}  # name -> path
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        try:
            answer = await self._answer(Request(scope, receive))
            if isinstance(answer, TextAnswer):
                self._engine.submit(answer.generation)
                await self._generate(answer, receive, send)
                return
        except RefusedError as refused:
            answer = refused.response
        except EngineDeadError:
            answer = Response(DEAD, 500, media_type="application/json")
        except (ClientDisconnect, Disconnected):
            return
        await answer(scope, receive, send)

    async def _generate(self, answer: TextAnswer, receive: Receive, send: Send) -> None:
        generation = answer.generation
        watch = asyncio.create_task(
            _on_disconnect(receive, lambda: self._engine.abort(generation)), name="simulated-watch"
        )
        try:
            await (answer.send_stream(send) if answer.request.stream else answer.send_whole(send))
        finally:
            watch.cancel()
            self._engine.abort(generation)

    async def _answer(self, request: Request) -> TextAnswer | Response:
        """Raises RefusedError, and what `Generation.add` raises."""
        path, method = request.scope["path"], request.method
        if _METHODS.get(path) != method:
            raise RefusedError(f"{NO_ROUTE} {method} {path}", 404, "NotFoundError")
        if path in _OPERATIONS:
            await self._engine.operate()
        if path == "/health":
            return Response(status_code=503 if self._engine.dead else 200)
        if path == "/v1/models":
            return JSONResponse({"object": "list", "data": self._cards()})
        if path in (LOAD_ADAPTER.engine_path, UNLOAD_ADAPTER.engine_path):
            self._change_adapters(path, await _fields(request))
        if path in CANNED:
            named = {"model": self._names[0]} if path in ENDPOINTS else {}
            return JSONResponse(named | CANNED[path])
        wanted = parse(await _fields(request))
        model, adapters = wanted.model, self._adapters
        if model and model not in (*self._names, *adapters):
            raise RefusedError(f"The model `{model}` does not exist.", 404, "NotFoundError")
        if ENDPOINTS[path].stream is None:
            wanted.stream = False
        made = CompletionAnswer if path == "/invocations" and wanted.prompt else _TEXT[path]
        return made(
            wanted,
            response_id=request.headers.get("x-request-id") or uuid.uuid4().hex[:16],
            model=model if model and model in adapters else self._names[0],
            max_model_len=self._engine.capacity.max_model_len,
        )

    def _change_adapters(self, path: str, options: dict[str, Any]) -> None:
        name = options["lora_name"]
        if path == UNLOAD_ADAPTER.engine_path:
            self._adapters.pop(name, None)
        elif options["lora_path"].startswith("missing"):
            raise RefusedError("The adapter can't be loaded.", 404, "NotFoundError")
        else:
            self._adapters[name] = options["lora_path"]

    def _cards(self) -> list[dict[str, Any]]:
        """The models, and the adapters that are loaded, as vLLM lists them."""
        fixed = {
            "object": "model",
            "created": int(time.time()),
            "owned_by": "simulated",
            "max_model_len": self._engine.capacity.max_model_len,
        }
        rows: list[tuple[str, str, str | None]] = [
            *((name, self._root, None) for name in self._names),
            *((name, path, self._names[0]) for name, path in self._adapters.items()),
        ]
        return [{"id": name, "root": root, "parent": base} | fixed for name, root, base in rows]


async def _fields(request: Request) -> dict[str, Any]:
    """The fields of a body. Raises RefusedError."""
    try:
        fields = json.loads(await request.body())
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise RefusedError("The simulated engine can't use this request: it is no JSON object.")
    return fields


async def _on_disconnect(receive: Receive, then: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    then()

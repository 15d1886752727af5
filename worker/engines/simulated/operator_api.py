"""The simulated engine's routes for operators: LoRA adapters, sleep, caches, profiler.

Adapters have names and paths, nothing else: their answers are those of the base model. A path that
begins with `missing` can't be loaded.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from shared.api.operator_actions import ACTIONS
from worker.engines.simulated.refusal import RefusedError

ROUTES = {action.engine_path: action.method for action in ACTIONS.values() if action.engine_path}


class OperatorApi:
    """State and answers of these routes. `base_models` are the names that are no adapters'."""

    def __init__(self, base_models: Collection[str], max_loras: int) -> None:
        self.adapters: dict[str, str] = {}
        """Name -> path."""
        self._base_models = base_models
        self._max_loras = max_loras
        self._sleeping = False

    async def answer(self, request: Request) -> Response:
        """The answer to a request to one of `ROUTES`. Raises RefusedError."""
        query = request.query_params
        match request.url.path:
            case "/v1/load_lora_adapter":
                return self._load(json.loads(await request.body()))
            case "/v1/unload_lora_adapter":
                return self._unload(json.loads(await request.body()))
            case "/sleep":
                self._sleeping = True
                return JSONResponse({"status": "sleeping", "level": int(query.get("level", 1))})
            case "/wake_up":
                return self._wake_up(query)
            case "/is_sleeping":
                return JSONResponse({"is_sleeping": self._sleeping})
            case "/reset_prefix_cache":
                return JSONResponse({"success": True})
            case "/server_info":
                return JSONResponse({"vllm_config": "simulated", "vllm_env": {}, "system_env": {}})
            case _:
                return Response(status_code=200)

    def _load(self, options: dict[str, Any]) -> Response:
        name, path = options["lora_name"], options["lora_path"]
        if not self._max_loras:
            raise RefusedError("LoRA is not enabled.", kind="InternalServerError", status=500)
        if name in self._base_models:
            message = f"The lora adapter '{name}' conflicts with a served base model."
            raise RefusedError(message, kind="InvalidUserInput")
        if name in self.adapters and not options.get("load_inplace"):
            message = (
                f"The lora adapter '{name}' has already been loaded. If you want to load the "
                "adapter in place, set 'load_inplace' to True."
            )
            raise RefusedError(message, kind="InvalidUserInput")
        if path.startswith("missing"):
            message = f"Loading lora {name} failed: No adapter found for {path}"
            raise RefusedError(message, kind="NotFoundError", status=404)
        self.adapters[name] = path
        return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")

    def _unload(self, options: dict[str, Any]) -> Response:
        name = options["lora_name"]
        if self.adapters.pop(name, None) is None:
            message = f"The lora adapter '{name}' cannot be found."
            raise RefusedError(message, kind="NotFoundError", status=404)
        return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")

    def _wake_up(self, query: QueryParams) -> Response:
        self._sleeping = False
        return JSONResponse({"status": "awake", "tags": query.getlist("tags") or None})

"""Calls of the engine's own routes that are no jobs: its models, and what operators ask for."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from shared.api.operator_actions import OperatorAction
from shared.fleet.worker_answer import WorkerAnswer
from worker.core.asgi import Exchange
from worker.engines.interface import NO_ROUTE, Engine


async def model_cards(engine: Engine) -> list[dict[str, Any]]:
    """The entries of the engine's own /v1/models, adapters included.

    Those of adapters get the context length of their base model, which vLLM leaves out.
    """
    exchange = Exchange()
    await exchange.run(engine, "GET", "/v1/models")
    cards: list[dict[str, Any]] = json.loads(bytes(exchange.body))["data"]
    for card in cards:
        if card.get("max_model_len") is None:
            card["max_model_len"] = cards[0].get("max_model_len")
    return cards


async def operate(
    engine: Engine, action: OperatorAction, options: Mapping[str, Any]
) -> WorkerAnswer:
    """Have the engine do what an operator asks for. An error that it raises is an answer, too."""
    exchange, began = Exchange(), time.monotonic()
    body = b"" if action.in_query else json.dumps(dict(options)).encode()
    try:
        await exchange.run(
            engine, action.method, action.engine_path, body, query=action.query(options)
        )
    except Exception as error:
        return WorkerAnswer(500, _error(f"The engine failed: {error}"), time.monotonic() - began)
    answer = bytes(exchange.body).decode(errors="replace")
    try:
        read = json.loads(answer) if answer else None
    except ValueError:
        read = answer
    if exchange.status == 404 and NO_ROUTE in answer:
        return WorkerAnswer(501, _error(_missing(action)), time.monotonic() - began)
    return WorkerAnswer(exchange.status or 500, read, time.monotonic() - began)


def refusal(status: int, message: str) -> WorkerAnswer:
    """The answer of a worker that does not do it."""
    return WorkerAnswer(status, _error(message))


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message}}


def _missing(action: OperatorAction) -> str:
    hint = "; start it with --profiler-config" if "profile" in action.name else ""
    return f"The engine does not have {action.engine_path}{hint}."

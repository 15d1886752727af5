"""Hooks for a safety check by a model such as Llama Guard, which another pool or server serves.

The model gets the conversation and answers `safe`, or `unsafe` and the categories. GUARD_URL is the
base URL of its OpenAI API, GUARD_MODEL its name, GUARD_KEY an API key.

    HOOKS=worker.plugins.hooks.examples.guard
    FLOTILLA_HOOKS=before=$HOOKS:check_request,after=$HOOKS:check_answer

If the model does not answer, the request fails: nothing is passed on unchecked.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import httpx

from worker.plugins.hooks.hook_types import Answer, Refusal, Request

URL = os.environ.get("GUARD_URL", "http://127.0.0.1:8000/v1")
MODEL = os.environ.get("GUARD_MODEL", "meta-llama/Llama-Guard-3-1B")
KEY = os.environ.get("GUARD_KEY", "none")
TIMEOUT_S = 20.0


async def check_request(request: Request) -> Refusal | None:
    """Refuse a conversation that the model finds unsafe."""
    conversation = _conversation(request)
    return await _verdict(conversation, "The request") if conversation else None


async def check_answer(answer: Answer) -> Refusal | None:
    """Refuse a whole answer."""
    reply = {"role": "assistant", "content": answer.all_text}
    messages = [*_conversation(answer.request), reply]
    return await _verdict(messages, "The answer") if answer.all_text else None


def _conversation(request: Request) -> list[dict[str, Any]]:
    """The request's messages, without what the `before` hooks have put in front of them."""
    messages, prompt = request.body.get("messages"), request.body.get("prompt")
    if isinstance(messages, list):
        return [m for m in messages if isinstance(m, dict) and m.get("role") != "system"]
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else []


async def _verdict(conversation: list[dict[str, Any]], what: str) -> Refusal | None:
    body = {"model": MODEL, "messages": conversation, "max_tokens": 20, "temperature": 0}
    reply = await _client().post("/chat/completions", json=body)
    reply.raise_for_status()
    verdict, *categories = reply.json()["choices"][0]["message"]["content"].split()
    if verdict == "safe":
        return None
    named = f" ({', '.join(categories)})" if categories else ""
    return Refusal(f"{what} was refused by the safety check{named}.", code="content_filter")


@cache
def _client() -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=URL, headers={"authorization": f"Bearer {KEY}"}, timeout=TIMEOUT_S
    )

"""Calls a gateway from a thread of its own, many requests at once."""

from __future__ import annotations

import asyncio
import itertools
import threading
from concurrent.futures import Future
from math import inf
from typing import Any

import httpx

from shared.batches.line_check import BadLine, check_body
from shared.client.async_transport import AsyncResumingTransport
from shared.client.retries import Limits
from shared.platform.tasks import end

_PATIENT = Limits(attempts=1_000_000_000, give_up_s=inf)
"""A gateway that is away is started again; whoever waits for answers sees if the fleet ends."""
_POOLS = 32


class Answers:
    """Close it at the end: that cancels what is in flight."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={**headers, "x-flotilla-on-disconnect": "cancel"},
            timeout=None,  # noqa: S113 - a request may wait for hours
            transport=AsyncResumingTransport([url], _PATIENT, _Connections()),
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="local fleet", daemon=True
        )
        self._thread.start()

    def start(self, endpoint: str, body: dict[str, Any]) -> Future[dict[str, Any]]:
        """Send a request; the result is the JSON of its answer, whatever its status."""
        return asyncio.run_coroutine_threadsafe(self._answer(endpoint, body), self._loop)

    def close(self) -> None:
        """Cancel what is in flight, and close all connections."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _answer(self, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            check_body(body, endpoint)
        except BadLine as error:
            return _error(str(error), error.code, error.param)
        response = await self._http.post(endpoint, json=body)
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if isinstance(answer, dict):
            return answer
        return _error(f"Status {response.status_code}, and no JSON object.", "no_json_object", None)

    async def _end(self) -> None:
        await end([each for each in asyncio.all_tasks() if each is not asyncio.current_task()])
        await self._http.aclose()


class _Connections(httpx.AsyncBaseTransport):
    """Takes connection pools in turn: one looks at all of its connections at each request."""

    def __init__(self) -> None:
        no_limit = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._pools = [
            httpx.AsyncHTTPTransport(verify=False, limits=no_limit, trust_env=False)
            for _ in range(_POOLS)
        ]
        self._turns = itertools.cycle(self._pools)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Called by httpx."""
        return await next(self._turns).handle_async_request(request)

    async def aclose(self) -> None:
        """Close all connections."""
        for each in self._pools:
            await each.aclose()


def _error(message: str, code: str, param: str | None) -> dict[str, Any]:
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return {"error": error}

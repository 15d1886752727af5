"""The client of a run: it asks another gateway when one does not answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

import httpx

from load_tests.clients.gateways import Gateways
from load_tests.faults.batches.batch_input import Json
from load_tests.harness.errors import WrongAnswerError
from load_tests.systems.engine import CHAT_PATH

_TIMEOUT_S = 30.0
_PATIENCE_S = 60.0
_AGAIN_S = 0.1


class BatchClient:
    """`close` it at the end. Methods raise WrongAnswerError."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._gateways = Gateways(urls, timeout_s=_TIMEOUT_S)

    async def create(self, data: bytes) -> Json:
        """Upload an input and create a batch of it."""
        files = {"file": ("in.jsonl", data)}
        file = await self._json("POST", "/v1/files", files=files, data={"purpose": "batch"})
        wanted = {"input_file_id": file["id"], "endpoint": CHAT_PATH, "completion_window": "24h"}
        return await self._json("POST", "/v1/batches", json=wanted)

    async def get(self, batch_id: str) -> Json:
        """The batch now."""
        return await self._json("GET", f"/v1/batches/{batch_id}")

    async def cancel(self, batch_id: str) -> None:
        """Ask for its end."""
        await self._json("POST", f"/v1/batches/{batch_id}/cancel")

    async def lines(self, file_id: str | None) -> Sequence[Json]:
        """The lines of a file; none if there is no file."""
        if not file_id:
            return []
        content = (await self._ask("GET", f"/v1/files/{file_id}/content")).content
        return [json.loads(line) for line in content.splitlines()]

    async def close(self) -> None:
        """Close its connections."""
        await self._gateways.close()

    async def _json(self, method: str, path: str, **content: Any) -> Json:
        found: Json = (await self._ask(method, path, **content)).json()
        return found

    async def _ask(self, method: str, path: str, **content: Any) -> httpx.Response:
        """The answer of the first gateway that has one."""
        until = time.monotonic() + _PATIENCE_S
        while True:
            try:
                response = await self._gateways.plain.request(method, path, **content)
                if response.status_code == 200:
                    return response
                problem = f"{response.status_code} {response.text[:500]}"
                final = response.status_code < 500
            except httpx.TransportError as error:
                problem, final = repr(error), False
            if final or time.monotonic() > until:
                raise WrongAnswerError(f"{method} {path}: {problem}")
            await asyncio.sleep(_AGAIN_S)

"""What the processes of `flotilla up` answer over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping

import httpx

from gateway.launcher.launcher_settings import LauncherSettings

_TIMEOUT_S = 2.0
_LIST_TRIES = 50
_LIST_POLL_S = 0.2


class HttpProbe:
    """Make it in a running event loop; `close` it at the end."""

    def __init__(self) -> None:
        # Proxy variables are meant for the internet, never for this machine.
        self._http = httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False)
        self.close = self._http.aclose

    async def is_ready(self, url: str) -> bool:
        """Whether a gateway or worker is ready."""
        try:
            response = await self._http.get(f"{url}/readyz")
        except httpx.HTTPError:
            return False
        return response.status_code == httpx.codes.OK

    async def first_model(
        self, gateway_url: str, settings: LauncherSettings, wanted: Collection[str]
    ) -> str | None:
        """One of the `wanted` models as the gateway lists it, else the first of its list."""
        headers: Mapping[str, str] = {}
        if settings.api_keys:
            name, colon, key = settings.api_keys[0].get_secret_value().partition(":")
            headers = {"Authorization": f"Bearer {key if colon else name}"}
        url = f"{gateway_url}/v1/models"
        with contextlib.suppress(httpx.HTTPError, ValueError, LookupError):
            for _ in range(_LIST_TRIES):
                if models := (await self._http.get(url, headers=headers)).json()["data"]:
                    names = [str(model["id"]) for model in models]
                    return next((name for name in names if name in wanted), names[0])
                await asyncio.sleep(_LIST_POLL_S)
        return None

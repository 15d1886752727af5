"""Sends one event to one URL: no redirects, no proxies, 15 seconds in all."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

import httpcore

from gateway.webhooks.checked_network import CheckedNetwork, Resolver
from shared.job.errors import WebhookUrlRefused
from shared.webhooks.address_check import AllowedAddresses

TIMEOUT_S = 15.0
"""From the look-up of the name to the head of the answer."""
_MOST_ERROR_CHARACTERS = 200


class Outcome(NamedTuple):
    """What became of one try."""

    status: int
    """Of the answer; 0: there was none."""
    error: str
    """Why there was no answer; empty if there was one."""
    duration_ms: int
    retry_after_s: float = 0.0
    """How long the receiver wants to be left alone; 0: it does not say."""

    @property
    def delivered(self) -> bool:
        """Whether the receiver has the event."""
        return 200 <= self.status < 300


class WebhookSender:
    """Sends events. A connection is used once, so that each has its address checked."""

    def __init__(self, allowed: AllowedAddresses) -> None:
        self.allowed = allowed
        self.resolver = Resolver()
        self._tls = ssl.create_default_context()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Outcome:
        """Send a body as JSON. Errors are in the outcome."""
        began = time.monotonic()
        status, error, retry_after_s = 0, "", 0.0
        try:
            async with asyncio.timeout(TIMEOUT_S):
                status, retry_after_s = await self._post(url, headers, body)
        except WebhookUrlRefused as refused:
            error = f"refused: {refused}"
        except TimeoutError:
            error = f"no answer within {TIMEOUT_S:g} s"
        except (OSError, httpcore.TimeoutException, httpcore.NetworkError) as failed:
            error = f"no connection: {failed or type(failed).__name__}"
        except httpcore.ProtocolError as failed:
            error = f"not HTTP: {failed}"
        duration_ms = int((time.monotonic() - began) * 1000)
        return Outcome(status, error[:_MOST_ERROR_CHARACTERS], duration_ms, retry_after_s)

    async def _post(self, url: str, headers: Mapping[str, str], body: bytes) -> tuple[int, float]:
        """The status of the answer, and its Retry-After. What follows its head is not read."""
        network = CheckedNetwork(self.allowed.target(url), self.resolver, self.allowed)
        sent: list[tuple[bytes | str, bytes | str]] = [
            ("content-type", "application/json"),
            ("user-agent", "Flotilla-Webhooks/1"),
            ("connection", "close"),
            *headers.items(),
        ]
        async with httpcore.AsyncConnectionPool(
            self._tls, max_connections=1, max_keepalive_connections=0, network_backend=network
        ) as pool:
            timeouts = dict.fromkeys(("connect", "read", "write"), TIMEOUT_S)
            async with pool.stream(
                "POST", url, headers=sent, content=body, extensions={"timeout": timeouts}
            ) as answer:
                return answer.status, _retry_after_s(answer.headers)

    def close(self) -> None:
        """To be called at the end of the process."""
        self.resolver.close()


def _retry_after_s(headers: list[tuple[bytes, bytes]]) -> float:
    """Seconds from now that the header names, as a number or as a date; 0 without it."""
    for name, value in headers:
        if name.lower() != b"retry-after":
            continue
        text = value.decode("latin-1").strip()
        if text.isascii() and text.isdecimal():
            return float(text[:9])
        try:
            at = parsedate_to_datetime(text)
        except ValueError:
            return 0.0
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        return max(0.0, (at - datetime.now(UTC)).total_seconds())
    return 0.0

"""Endpoints of webhooks with a receiver on loopback, and what it was told."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from openai import AsyncOpenAI
from openai.types.webhooks import WebhookEndpointWithSecret

from tests.harness.fleet import Process
from tests.harness.receivers import Answer, Call, Receiver, answers, receiver
from tests.harness.waiting import eventually

FINE = answers(204)
ALLOW = {"webhook_allow": "127.0.0.1"}
EVERYTHING: Any = [
    "batch.completed", "batch.failed", "batch.expired", "batch.cancelled",
    "response.completed", "response.failed", "response.cancelled", "response.incomplete",
    "job.completed", "job.failed", "job.cancelled", "job.expired",
]  # fmt: skip


class Subscriber:
    """A receiver on loopback and its endpoint, which is deleted at the end."""

    def __init__(self, there: Receiver, endpoint: WebhookEndpointWithSecret) -> None:
        self.endpoint = endpoint
        self.calls = there.calls

    def told(self, call: Call) -> Any:
        """The event of a call; its signature is checked."""
        client = AsyncOpenAI(api_key="unused", webhook_secret=self.endpoint.signing_secret)
        return client.webhooks.unwrap(call.body, call.headers)

    async def events(self, n: int, deadline_s: float = 60.0) -> list[tuple[str, str]]:
        """Types and subjects of the events, once there are `n`."""

        async def are_there() -> bool:
            return len(self.calls) >= n

        await eventually(are_there, f"{n} events", deadline_s)
        events = map(self.told, self.calls)
        return [(each.type, each.data.id) for each in events]


@contextlib.asynccontextmanager
async def subscribed(
    client: AsyncOpenAI, answer: Answer = FINE, types: Any = EVERYTHING
) -> AsyncIterator[Subscriber]:
    """An endpoint for the time of the context."""
    async with receiver(answer) as there:
        endpoint = await client.webhooks.create(name="n", url=there.url, event_types=types)
        yield Subscriber(there, endpoint)
        await client.webhooks.delete(endpoint.id)


def client_of(gateway: Process, key: str = "k-team") -> AsyncOpenAI:
    """OpenAI's client as a tenant."""
    return AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0, timeout=60)

"""Calls about webhooks that are not public any more: test events, and new secrets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from tests.harness.fleet import Process, Stack
from tests.harness.receivers import closes
from tests.harness.webhooks import ALLOW, EVERYTHING, client_of, subscribed

FAILED: Any = "job.failed"
"""An event that the SDK's types lack."""


@pytest.fixture(scope="module")
def gateway(module_stack: Stack) -> Process:
    return module_stack.gateway(api_keys="team:k-team,other:k-other", **ALLOW)


@pytest.fixture
async def client(gateway: Process) -> AsyncIterator[AsyncOpenAI]:
    async with client_of(gateway) as client:
        yield client


async def test_event_types(client: AsyncOpenAI) -> None:
    assert (await client.webhooks.event_types.list()).data == EVERYTHING


async def test_a_test_event_and_a_new_secret(client: AsyncOpenAI) -> None:
    async with subscribed(client) as there:
        result = await client.webhooks.test(there.endpoint.id, event_type="batch.completed")
        assert (result.status_code, result.success) == (204, True)
        ((kind, subject),) = await there.events(1)
        assert (kind, subject.startswith("batch_test_")) == ("batch.completed", True)
        old = there.endpoint.signing_secret
        there.endpoint = await client.webhooks.rotate_secret(
            there.endpoint.id, keep_old_secret_active_for_24_hours=True
        )
        assert there.endpoint.signing_secret != old
        await client.webhooks.test(there.endpoint.id, event_type=FAILED)
        call = there.calls[-1]
        for secret in (old, there.endpoint.signing_secret):
            client.webhooks.verify_signature(call.body, call.headers, secret=secret)
        there.endpoint = await client.webhooks.rotate_secret(there.endpoint.id)
        await client.webhooks.test(there.endpoint.id, event_type=FAILED)
        there.told(there.calls[-1])
        with pytest.raises(openai.InvalidWebhookSignatureError):
            client.webhooks.verify_signature(
                there.calls[-1].body, there.calls[-1].headers, secret=old
            )
    async with subscribed(client, closes) as gone:
        with pytest.raises(openai.BadRequestError) as unreachable:
            await client.webhooks.test(gone.endpoint.id, event_type=FAILED)
        assert unreachable.value.code == "webhook_unreachable"


async def test_another_tenants_endpoints(gateway: Process, client: AsyncOpenAI) -> None:
    async with subscribed(client) as there, client_of(gateway, "k-other") as other:
        mine = there.endpoint.id
        for call in (
            other.webhooks.rotate_secret(mine),
            other.webhooks.test(mine, event_type=FAILED),
        ):
            with pytest.raises(openai.NotFoundError):
                await call

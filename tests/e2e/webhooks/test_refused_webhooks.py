"""What is refused of webhooks: URLs, fields, other tenants' endpoints, too many of them."""

from __future__ import annotations

import secrets
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from shared.webhooks.webhook_endpoint import MOST_ENDPOINTS
from tests.e2e.webhooks.conftest import EVERYTHING, client_of, subscribed
from tests.harness.fleet import Process

FAILED: Any = "job.failed"
CHAT = {"model": "simulated", "messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize(
    "url",
    [
        "http://8.8.8.8/",
        "https://10.0.0.1/",
        "https://169.254.169.254/latest/meta-data",
        "https://0x7f.1/",
        "https://2130706433/",
        "https://[64:ff9b::a00:1]/",
        "https://[::1]/",
        "https://user:password@8.8.8.8/",
        "https://8.8.8.8/#part",
        "ftp://8.8.8.8/",
        "8.8.8.8",
        "",
    ],
)
async def test_urls_that_are_refused(client: AsyncOpenAI, url: str) -> None:
    async with subscribed(client) as there:
        for call in (
            client.webhooks.create(name="n", url=url, event_types=EVERYTHING),
            client.webhooks.update(there.endpoint.id, url=url),
        ):
            with pytest.raises(openai.BadRequestError) as refused:
                await call
            assert (refused.value.code, refused.value.param) == ("webhook_url_refused", "url")


async def test_wrong_fields(client: AsyncOpenAI) -> None:
    fine = {"name": "n", "url": "https://8.8.8.8/", "event_types": ["job.failed"]}
    for changes, param in (
        ({"name": ""}, "name"),
        ({"name": 1}, "name"),
        ({"url": None}, "url"),
        ({"event_types": []}, "event_types"),
        ({"event_types": ["job.completed", "line.completed"]}, "event_types"),
        ({"no_such_field": 1}, "no_such_field"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.post("/webhook_endpoints", body=fine | changes, cast_to=object)
        assert refused.value.param == param


async def test_another_tenants_endpoints(gateway: Process, client: AsyncOpenAI) -> None:
    async with subscribed(client) as there, client_of(gateway, "k-other") as other:
        mine = there.endpoint.id
        path = f"/webhook_endpoints/{mine}/deliveries"
        for call in (
            other.webhooks.retrieve(mine),
            other.webhooks.update(mine, name="x"),
            other.webhooks.delete(mine),
            other.webhooks.rotate_secret(mine),
            other.webhooks.test(mine, event_type=FAILED),
            other.get(path, cast_to=object),
            other.post(f"{path}/wh_{'0' * 24}/resend", cast_to=object),
            other.webhooks.list(after=mine),
        ):
            with pytest.raises(openai.NotFoundError):
                await call
        assert (await other.webhooks.list()).data == []
        for unknown in (mine, f"we_{secrets.token_hex(12)}", "x" * 1000):
            with pytest.raises(openai.BadRequestError) as refused:
                await other.post(
                    f"{gateway.url}/jobs", body={"body": CHAT, "webhooks": [unknown]},
                    cast_to=object,
                )  # fmt: skip
            assert refused.value.param == "webhooks"
        file = await other.files.create(file=("in.jsonl", b"{}"), purpose="batch")
        values: Any = {"endpoint": "/v1/embeddings", "completion_window": "24h"}
        with pytest.raises(openai.BadRequestError) as refused:
            await other.batches.create(
                input_file_id=file.id, **values, extra_body={"webhooks": [mine]}
            )
        assert refused.value.param == "webhooks"


async def test_no_more_than_twenty(gateway: Process) -> None:
    values: Any = {"name": "n", "url": "https://8.8.8.8/", "event_types": ["job.failed"]}
    async with client_of(gateway, "k-full") as full:
        for _ in range(MOST_ENDPOINTS):
            made = await full.webhooks.create(**values)
        with pytest.raises(openai.RateLimitError) as refused:
            await full.webhooks.create(**values)
        assert refused.value.code == "too_many_webhooks"
        await full.webhooks.delete(made.id)
        await full.webhooks.create(**values)

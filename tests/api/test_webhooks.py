"""Webhooks by OpenAI's unmodified SDK: a gateway, maintenance and a simulated worker."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from tests.harness.client import MODEL, chat
from tests.harness.fleet import Process, Stack
from tests.harness.receivers import answers
from tests.harness.servers import RedisServer
from tests.harness.waiting import eventually
from tests.harness.webhooks import ALLOW, EVERYTHING, Subscriber, client_of, subscribed

CHAT = chat(max_tokens=3)
FAILED: Any = "job.failed"
"""An event that the SDK's types lack."""
HEADERS = {"authorization": "Bearer k-team"}


@pytest.fixture(scope="module")
def gateway(module_stack: Stack) -> Process:
    """The gateway of a whole fleet."""
    storage = str(module_stack.folder / "files")
    module_stack.worker(sim_step_ms=4, sim_step_us_per_seq=0)
    module_stack.maintenance(storage_url=storage, **ALLOW)
    keys = "team:k-team,other:k-other,full:k-full,paged:k-paged"
    return module_stack.gateway(api_keys=keys, storage_url=storage, **ALLOW)


@pytest.fixture
async def client(gateway: Process) -> AsyncIterator[AsyncOpenAI]:
    async with client_of(gateway) as client:
        yield client


def body(**changes: Any) -> dict[str, Any]:
    return CHAT | {"ignore_eos": True} | changes


async def post(gateway: Process, path: str, sent: dict[str, Any], **headers: str) -> httpx.Response:
    extra = {name.replace("_", "-"): value for name, value in headers.items()}
    async with httpx.AsyncClient(timeout=60) as http:
        return await http.post(gateway.url + path, json=sent, headers=HEADERS | extra)


async def job(gateway: Process, **fields: Any) -> str:
    """The id of a job that was submitted."""
    answer = await post(gateway, "/jobs", {"body": CHAT} | fields)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


async def deliveries(client: AsyncOpenAI, subscriber: Subscriber, **query: Any) -> dict[str, Any]:
    found = await client.get(
        f"/webhook_endpoints/{subscriber.endpoint.id}/deliveries",
        cast_to=object,
        options={"params": query},
    )
    assert isinstance(found, dict)
    return found


async def test_the_life_of_an_endpoint(client: AsyncOpenAI) -> None:
    async with subscribed(client, types=["job.completed"]) as there:
        made = there.endpoint
        assert made.id.startswith("we_")
        assert made.signing_secret.startswith("whsec_")
        assert made.signing_secret_hint == f"whsec_...{made.signing_secret[-4:]}"
        found = await client.webhooks.retrieve(made.id)
        assert found.to_dict() == {
            name: value for name, value in made.to_dict().items() if name != "signing_secret"
        }
        newer = await client.webhooks.create(name="b", url=made.url, event_types=["batch.failed"])
        listed = [each async for each in client.webhooks.list(limit=1)]
        assert [each.id for each in listed] == [newer.id, made.id]
        assert not any("signing_secret" in each.to_dict() for each in listed)
        changed = await client.webhooks.update(
            newer.id, name="c", event_types=["batch.expired", FAILED]
        )
        assert (changed.name, changed.url) == ("c", made.url)
        assert changed.event_types == ["batch.expired", FAILED]
        deleted = await client.webhooks.delete(newer.id)
        assert (deleted.id, deleted.deleted) == (newer.id, True)
        with pytest.raises(openai.NotFoundError):
            await client.webhooks.retrieve(newer.id)


async def test_events_of_jobs(gateway: Process, client: AsyncOpenAI) -> None:
    async with subscribed(client) as there, subscribed(client, types=["batch.failed"]) as named:
        submitted = await job(gateway)
        kept = {"x_flotilla_on_disconnect": "keep"}
        later = await post(gateway, "/v1/chat/completions", CHAT, **kept)
        await client.chat.completions.create(**CHAT)  # its client knows its end
        await there.events(2)
        cancelled = await job(gateway, body=body(max_tokens=8000))
        await post(gateway, f"/jobs/{cancelled}/cancel", {})
        assert sorted(await there.events(3)) == sorted([
            ("job.completed", submitted),
            ("job.completed", later.headers["x-flotilla-job-id"]),
            ("job.cancelled", cancelled),
        ])  # fmt: skip
        for_one = await job(gateway, webhooks=[named.endpoint.id])
        assert await named.events(1) == [("job.completed", for_one)]
        assert len({call.headers["webhook-id"] for call in there.calls}) == 3


async def test_events_of_responses_in_the_background(client: AsyncOpenAI) -> None:
    async with subscribed(client) as there:
        await client.responses.create(model=MODEL, input="hello")
        made = await client.responses.create(model=MODEL, input="hello", background=True)
        assert await there.events(1) == [("response.completed", made.id)]
        long = await client.responses.create(
            model=MODEL, input="hello", background=True, extra_body={"ignore_eos": True},
            max_output_tokens=8000,
        )  # fmt: skip
        await client.responses.cancel(long.id)
        cut = await client.responses.create(
            model=MODEL, input="hello", background=True, extra_body={"ignore_eos": True},
            max_output_tokens=16,
        )  # fmt: skip
        assert sorted(await there.events(3)) == sorted([
            ("response.completed", made.id),
            ("response.cancelled", long.id),
            ("response.incomplete", cut.id),
        ])  # fmt: skip


async def test_events_of_batches_and_none_of_their_lines(
    gateway: Process, client: AsyncOpenAI
) -> None:
    url = "/v1/chat/completions"
    lines = [
        json.dumps({"custom_id": str(n), "method": "POST", "url": url, "body": CHAT})
        for n in range(5)
    ]
    async with subscribed(client) as there, subscribed(client, types=["job.failed"]) as named:
        file = await client.files.create(
            file=("in.jsonl", "\n".join(lines).encode()), purpose="batch"
        )
        values: Any = {"endpoint": url, "completion_window": "24h", "input_file_id": file.id}
        batch = await client.batches.create(**values)
        assert await there.events(1) == [("batch.completed", batch.id)]
        assert (await client.batches.retrieve(batch.id)).status == "completed"
        for_one = await client.batches.create(
            **values, extra_body={"webhooks": [named.endpoint.id]}
        )
        assert await named.events(1) == [("batch.completed", for_one.id)]
        after = await job(gateway)
        assert await there.events(2) == [
            ("batch.completed", batch.id),
            ("job.completed", after),
        ]


async def test_whoever_leaves_is_called(gateway: Process, client: AsyncOpenAI) -> None:
    headers = HEADERS | {"x-flotilla-on-disconnect": "keep"}
    sent = body(max_tokens=50, stream=True)
    async with subscribed(client) as there:
        async with (
            httpx.AsyncClient() as http,
            http.stream(
                "POST", f"{gateway.url}/v1/chat/completions", json=sent, headers=headers
            ) as answer,
        ):
            await anext(answer.aiter_raw())
            job_id = answer.headers["x-flotilla-job-id"]
        assert await there.events(1) == [("job.completed", job_id)]
    async with httpx.AsyncClient() as http:
        whole = await http.get(f"{gateway.url}/jobs/{job_id}/result", headers=HEADERS)
    assert whole.text.endswith("data: [DONE]\n\n")


async def test_deliveries_and_resend(gateway: Process, client: AsyncOpenAI) -> None:
    async with subscribed(client, answers(500)) as there:
        ids = {await job(gateway) for _ in range(3)}
        await there.events(3)

        async def noted() -> dict[str, Any] | None:
            found = await deliveries(client, there)
            n_tried = sum(bool(each["tries"]) for each in found["data"])
            return found if n_tried == 3 else None

        found = await eventually(noted, "what became of the tries")
        assert found is not None
        assert {each["subject"] for each in found["data"]} == ids
        for each in found["data"]:
            assert (each["state"], each["event_type"]) == ("pending", "job.completed")
            assert each["tries"][0]["status_code"] == 500
            assert each["next_try_at"] > each["tries"][0]["at"]

        async def paged() -> bool:
            """The order changes with each further try."""
            whole = await deliveries(client, there)
            first = await deliveries(client, there, limit=2)
            assert first["has_more"]
            rest = await deliveries(client, there, limit=2, after=first["data"][-1]["id"])
            return bool([*first["data"], *rest["data"]] == whole["data"])

        await eventually(paged, "two pages have what one has")
    async with subscribed(client) as there:
        subject = await job(gateway)
        await there.events(1)

        async def delivered() -> dict[str, Any] | None:
            found = (await deliveries(client, there))["data"]
            return next((each for each in found if each["state"] == "delivered"), None)

        each = await eventually(delivered, "it is noted")
        assert each is not None
        path = f"/webhook_endpoints/{there.endpoint.id}/deliveries"
        again: Any = await client.post(f"{path}/{each['id']}/resend", cast_to=object)
        assert (again["id"], again["state"]) == (each["id"], "pending")
        assert await there.events(2) == [("job.completed", subject)] * 2
        assert {call.headers["webhook-id"] for call in there.calls} == {each["id"]}
        with pytest.raises(openai.NotFoundError):
            await client.post(f"{path}/wh_{'0' * 24}/resend", cast_to=object)


# --- what is refused ---


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


async def test_pages_go_on_behind_endpoints_that_were_deleted(gateway: Process) -> None:
    values: Any = {"name": "n", "url": "https://8.8.8.8/", "event_types": ["job.failed"]}
    async with client_of(gateway, "k-paged") as client:
        made = [(await client.webhooks.create(**values)).id for _ in range(5)]
        seen = []
        async for each in client.webhooks.list(limit=2):
            seen.append(each.id)
            await client.webhooks.delete(each.id)
    assert seen == made[::-1]


async def test_another_tenants_endpoints(gateway: Process, client: AsyncOpenAI) -> None:
    async with subscribed(client) as there, client_of(gateway, "k-other") as other:
        mine = there.endpoint.id
        with pytest.raises(openai.NotFoundError):
            await other.webhooks.list(after=mine)
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
        for _ in range(20):
            made = await full.webhooks.create(**values)
        with pytest.raises(openai.RateLimitError) as refused:
            await full.webhooks.create(**values)
        assert refused.value.code == "too_many_webhooks"
        await full.webhooks.delete(made.id)
        await full.webhooks.create(**values)


async def test_events_wait_for_a_maintenance_process(
    own_redis: RedisServer, tmp_path: Path
) -> None:
    stack = Stack(own_redis.url, tmp_path)
    with contextlib.closing(stack):
        stack.worker(sim_step_ms=2, sim_step_us_per_seq=0)
        gateway = stack.gateway(**ALLOW)
        async with client_of(gateway) as client, subscribed(client) as there:
            ids = {await job(gateway) for _ in range(2)}

            async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as http:
                for job_id in ids:
                    done = await http.get(f"/jobs/{job_id}?wait=30")
                    assert done.json()["state"] == "completed"
            assert there.calls == []
            stack.maintenance(**ALLOW)
            assert {subject for _, subject in await there.events(2)} == ids

            async def noted() -> bool:
                found = (await deliveries(client, there))["data"]
                return [each["state"] for each in found] == ["delivered"] * 2

            await eventually(noted, "they are noted as delivered")

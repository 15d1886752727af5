"""Responses outlive their worker and their gateway: the same events, with the same ids."""

from __future__ import annotations

from typing import Any

import httpx
from openai import OpenAI

from shared.client.transport import ResumingTransport
from tests.harness.fleet import Process, Stack

MODEL = "simulated"
SLOW = {"sim_step_ms": 10, "sim_step_us_per_seq": 0}


def client_of(gateway: Process) -> OpenAI:
    return OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0, timeout=60)


def long_stream(client: OpenAI, **fields: Any) -> Any:
    return client.responses.create(
        model=MODEL,
        input="Tell me a story.",
        stream=True,
        max_output_tokens=400,
        extra_body={"ignore_eos": True},
        **fields,
    )


def normal(events: list[Any]) -> list[Any]:
    """Events without ids and times."""
    found = []
    for event in events:
        fields = event.to_dict()
        fields.pop("item_id", None)
        fields.get("item", {}).pop("id", None)
        if "response" in fields:
            fields["response"] = {
                name: fields["response"].get(name) for name in ("status", "usage", "model")
            }
        found.append(fields)
    return found


def item_ids(events: list[Any]) -> set[str]:
    ids = {event.item_id for event in events if hasattr(event, "item_id")}
    return ids | {event.item.id for event in events if hasattr(event, "item")}


def attempts(gateway: Process, response_id: str) -> list[Any]:
    job_id = "job_" + response_id.removeprefix("resp_")
    found: list[Any] = httpx.get(f"{gateway.url}/jobs/{job_id}").json()["attempts"]
    return found


def worker_of(gateway: Process, workers: list[Process], response_id: str) -> Process:
    """The worker that runs it."""
    worker_id = attempts(gateway, response_id)[-1]["worker"]
    return next(worker for worker in workers if worker_id in worker.log.read_text())


def test_a_response_outlives_its_worker(stack: Stack) -> None:
    gateway = stack.gateway()
    workers = [stack.worker(**SLOW) for _ in range(2)]
    with client_of(gateway) as client:
        undisturbed = list(long_stream(client))
        stream = long_stream(client)
        seen = []
        for event in stream:
            seen.append(event)
            if len(seen) == 30:
                worker_of(gateway, workers, seen[0].response.id).kill()
        assert normal(seen) == normal(undisturbed)
        assert len(item_ids(seen)) == 1
        assert len({e.response.created_at for e in seen if hasattr(e, "response")}) == 1
        final = seen[-1].response
        assert [each["outcome"] for each in attempts(gateway, final.id)] == [
            "worker_lost",
            "completed",
        ]
        assert {item.id for item in final.output} == item_ids(seen)
        assert client.responses.retrieve(final.id).output_text == final.output_text


def test_a_transport_resumes_a_background_response(stack: Stack) -> None:
    gateways = [stack.gateway(), stack.gateway()]
    stack.worker(**SLOW)
    transport = ResumingTransport([gateway.url for gateway in gateways])
    with OpenAI(
        base_url="http://flotilla/v1",
        api_key="any",
        max_retries=0,
        http_client=httpx.Client(transport=transport, timeout=60),
    ) as client:
        seen = []
        for event in long_stream(client, background=True):
            seen.append(event)
            if len(seen) == 30:
                gateways[0].kill()
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert seen[-1].type == "response.incomplete"


def test_a_background_response_outlives_its_gateway(stack: Stack) -> None:
    first, second = stack.gateway(), stack.gateway()
    stack.worker(**SLOW)
    with client_of(first) as client, client_of(second) as other:
        seen = []
        for event in long_stream(client, background=True):
            seen.append(event)
            if len(seen) == 30:
                first.kill()
                break
        response_id = seen[0].response.id
        after = seen[-1].sequence_number
        seen += list(other.responses.retrieve(response_id, stream=True, starting_after=after))
        assert [event.sequence_number for event in seen] == list(range(len(seen)))
        assert seen[-1].type == "response.incomplete"
        deltas = [e.delta for e in seen if e.type == "response.output_text.delta"]
        assert "".join(deltas) == other.responses.retrieve(response_id).output_text
        assert len(item_ids(seen)) == 1

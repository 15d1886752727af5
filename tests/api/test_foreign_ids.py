"""An id of another tenant is answered as one that does not exist, on each route with an id."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any, ClassVar

import httpx
import pytest

from tests.harness.client import chat, http
from tests.harness.fleet import Process, Stack
from tests.harness.keys import bearer
from tests.harness.waiting import wait_for

Route = tuple[str, str]
OF_NO_TENANT = {"name", "model"}
"""Parameters of paths that are not an id of a tenant's thing. Operators' routes are left out."""
FURTHER = [
    ("GET", "/v1/responses/{response_id}?stream=true"),
    ("GET", "/jobs/{job_id}?wait=1"),
    ("GET", "/v1/conversations/{conversation_id}/items?limit=1"),
]
ITEM = {"type": "message", "role": "user", "content": "x"}


class Things:
    """One thing of each kind that belongs to a tenant, and those who ask for it."""

    bodies: ClassVar[dict[str, dict[str, Any]]] = {
        "/v1/conversations/{conversation_id}": {"json": {"metadata": {}}},
        "/v1/conversations/{conversation_id}/items": {"json": {"items": [ITEM]}},
        "/v1/webhook_endpoints/{endpoint_id}/test": {"json": {"event_type": "job.completed"}},
    }
    """What a request needs so as not to be refused for its body."""

    def __init__(self, gateway: Process) -> None:
        self.team, self.other = (
            httpx.Client(base_url=gateway.url, headers=bearer(key), timeout=60)
            for key in ("k-team", "k-other")
        )
        self.ids = self.made()

    def post(self, path: str, **more: Any) -> Any:
        answer = self.team.post(path, **more)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def made(self) -> dict[str, str]:
        """The ids, by the names that paths give them."""
        job = self.post("/jobs", json={"body": chat(max_tokens=2)})["id"]
        wait_for(lambda: self.team.get(f"/jobs/{job}").json()["finished_at"], "it has ended")
        conversation = self.post("/v1/conversations", json={"items": [ITEM]})["id"]
        items = self.team.get(f"/v1/conversations/{conversation}/items").json()["data"]
        line = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}}'
        form: dict[str, Any] = {"files": {"file": ("in.jsonl", line)}, "data": {"purpose": "batch"}}
        file = self.post("/v1/files", **form)["id"]
        batch = {"endpoint": "/v1/completions", "completion_window": "24h", "input_file_id": file}
        hook = {"name": "n", "url": "http://127.0.0.1:9/", "event_types": ["job.completed"]}
        response = {"model": "simulated", "input": "x", "max_output_tokens": 2}
        return {
            "job_id": job,
            "response_id": self.post("/v1/responses", json=response)["id"],
            "conversation_id": conversation,
            "item_id": items[0]["id"],
            "file_id": file,
            "batch_id": self.post("/v1/batches", json=batch)["id"],
            "endpoint_id": self.post("/v1/webhook_endpoints", json=hook)["id"],
            "webhook_id": "wh_" + "0" * 24,
        }

    def routes(self) -> list[Route]:
        """Method and path of each described route with an id in it."""
        described = self.team.get("/openapi.json").json()["paths"]
        return [
            (method.upper(), path)
            for path, operations in described.items()
            for method in operations
            if set(re.findall(r"{(\w+)}", path)) - OF_NO_TENANT and not path.startswith("/admin")
        ]

    def answer(self, route: Route, ids: dict[str, str]) -> tuple[int, str]:
        """The other tenant's: its status, and its body with `ID` in place of each id."""
        method, path = route
        without_body: dict[str, Any] = {"json": {}} if method == "POST" else {}
        sent = self.bodies.get(path, without_body)
        answer = self.other.request(method, path.format(**ids), **sent)
        text = answer.text
        for value in ids.values():
            text = text.replace(value, "ID")
        return answer.status_code, re.sub(r"req_\w+", "REQUEST", text)

    def told_apart(self, routes: list[Route]) -> dict[Route, list[tuple[int, str]]]:
        """The answers of routes that tell an id of another tenant from one that nobody has."""
        unknown = {name: value[:-8] + "0badc0de" for name, value in self.ids.items()}
        found = {}
        for route in routes:
            answers = [self.answer(route, ids) for ids in (self.ids, unknown)]
            if answers[0] != answers[1] or answers[0][0] != 404:
                found[route] = answers
        return found


@pytest.fixture(scope="module")
def gateway(module_stack: Stack) -> Process:
    module_stack.worker(sim_step_ms=1, sim_step_us_per_seq=0)
    return module_stack.gateway(
        api_keys="team:k-team,other:k-other",
        storage_url=str(module_stack.folder / "files"),
        webhook_allow="127.0.0.1",
    )


@pytest.fixture(scope="module")
def things(gateway: Process) -> Iterator[Things]:
    found = Things(gateway)
    with closing(found.team), closing(found.other):
        yield found


def test_another_tenants_id_is_answered_as_an_unknown_one(things: Things) -> None:
    routes = things.routes()
    assert len(routes) >= 30
    assert things.told_apart([*routes, *FURTHER]) == {}
    for path in (
        "/jobs/{job_id}",
        "/v1/responses/{response_id}",
        "/v1/conversations/{conversation_id}/items/{item_id}",
        "/v1/files/{file_id}",
        "/v1/batches/{batch_id}",
        "/v1/webhook_endpoints/{endpoint_id}",
    ):
        assert things.team.get(path.format(**things.ids)).status_code == 200, "it is still there"


def test_a_job_is_read_by_its_own_tenant_only(things: Things) -> None:
    assert http.get(things.team.base_url.join("/jobs")).status_code == 401
    assert http.get(things.team.base_url.join("/metrics")).status_code == 401
    assert http.get(things.team.base_url.join("/healthz")).status_code == 200
    job = things.post("/jobs", json={"body": chat("secret", max_tokens=2)})["id"]
    wait_for(lambda: things.team.get(f"/jobs/{job}").json()["state"] == "completed", "it completes")
    for part in ("", "/result", "/events"):
        answer = things.other.get(f"/jobs/{job}{part}")
        assert answer.status_code == 404
        assert "secret" not in answer.text
    assert things.other.post(f"/jobs/{job}/cancel").status_code == 404
    assert things.other.get("/jobs").json()["data"] == []
    assert job in {each["id"] for each in things.team.get("/jobs").json()["data"]}

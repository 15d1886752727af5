"""`/openapi.json` describes real answers; `/docs` needs no other hosts and no key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest
from jsonschema import Draft202012Validator

from tests.harness.client import chat, http
from tests.harness.fleet import Process, Stack
from tests.harness.keys import TEAM


@pytest.fixture(scope="module")
def gateway(module_stack: Stack) -> Process:
    """A gateway with keys, and one worker."""
    module_stack.worker(sim_step_ms=2, sim_step_us_per_seq=0)
    return module_stack.gateway(api_keys="team:s3cret")


@pytest.fixture
def api(gateway: Process) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=30, headers=TEAM) as client:
        yield client


@pytest.fixture(scope="module")
def described(gateway: Process) -> dict[str, Any]:
    answer = http.get(f"{gateway.url}/openapi.json")
    assert answer.status_code == 200
    schema: dict[str, Any] = answer.json()
    return schema


def schema_at(described: dict[str, Any], content: dict[str, Any]) -> Draft202012Validator:
    schema = content["application/json"]["schema"] | {"components": described["components"]}
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


CHAT = chat(max_tokens=4)
REQUESTS: list[tuple[str, str, dict[str, Any]]] = [
    ("/v1/chat/completions", "200", CHAT),
    ("/v1/completions", "200", {"model": "simulated", "prompt": "hello", "max_tokens": 4}),
    ("/jobs", "202", {"body": CHAT, "lane": "flex", "metadata": {"a": "b"}}),
]


@pytest.mark.parametrize(("path", "status", "body"), REQUESTS)
def test_request_and_answer_of_post_match_the_description(
    api: httpx.Client, described: dict[str, Any], path: str, status: str, body: dict[str, Any]
) -> None:
    operation = described["paths"][path]["post"]
    asked = schema_at(described, operation["requestBody"]["content"])
    asked.validate(body)
    assert not asked.is_valid({})
    answer = api.post(path, json=body)
    assert str(answer.status_code) == status
    schema_at(described, operation["responses"][status]["content"]).validate(answer.json())
    refused = api.post(path, json=[])
    assert refused.status_code == 400
    schema_at(described, operation["responses"]["4XX"]["content"]).validate(refused.json())


def test_answers_of_get_match_the_description(api: httpx.Client, described: dict[str, Any]) -> None:
    job = api.post("/jobs", json={"body": CHAT}).json()
    for path, at in (
        ("/jobs", "/jobs"),
        ("/jobs/{job_id}", f"/jobs/{job['id']}?wait=20"),
        ("/v1/models", "/v1/models"),
        ("/v1/models/{name}", "/v1/models/simulated"),
    ):
        answer = described["paths"][path]["get"]["responses"]["200"]
        schema_at(described, answer["content"]).validate(api.get(at).json())
    done = api.get(f"/jobs/{job['id']}").json()
    assert done["state"] == "completed"
    documented = described["components"]["schemas"]["Job"]["properties"]
    assert set(job) | set(done) <= set(documented)


def test_every_operation_describes_its_errors_and_its_key(described: dict[str, Any]) -> None:
    assert described["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    for path, operations in described["paths"].items():
        for operation in operations.values():
            assert "HTTPValidationError" not in str(operation["responses"])
            assert {"4XX", "5XX"} <= set(operation["responses"])
            probe = path in {"/", "/healthz", "/readyz", "/health", "/ping"}
            assert operation.get("security") == (None if probe else [{"key": []}]), path


def test_every_reference_can_be_resolved(described: dict[str, Any]) -> None:
    known = {f"#/components/schemas/{name}" for name in described["components"]["schemas"]}
    named = set(re.findall(r"'\$ref': '([^']+)'", str(described)))
    assert named <= known


def test_swagger_ui_loads_nothing_from_other_hosts_and_needs_no_key(gateway: Process) -> None:
    page = http.get(f"{gateway.url}/docs")
    assert page.status_code == 200
    assert "http://" not in page.text
    assert "https://" not in page.text
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(loaded) == 3
    for path in loaded:
        answer = http.get(urljoin(f"{gateway.url}/docs", path))
        assert answer.status_code == 200, path
        assert len(answer.content) > 1000
    assert '"validatorUrl": null' in page.text
    assert http.get(f"{gateway.url}/docs/x").status_code == 401
    assert http.get(f"{gateway.url}/docs/x", headers=TEAM).status_code == 404

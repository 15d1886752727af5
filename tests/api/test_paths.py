"""Paths and query parameters that clients and proxies change."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest

from tests.harness.client import CHAT, chat
from tests.harness.fleet import Process, Stack
from tests.harness.keys import KEYS, OPERATOR, TEAM

OF_APIS = ("/v1/", "/version", "/load", "/health", "/ping")
OURS = ("/v1/usage", "/v1/webhook", "/v1/load_lora_adapter", "/v1/unload_lora_adapter")
"""Also operators' routes: with a misspelt `pool` they would change all pools."""
ODD = {"limit": "1", "api-version": "2024-06-01", "beta": "true", "x": ""}


@pytest.fixture(scope="module")
def gateway(module_stack: Stack) -> Process:
    module_stack.worker(sim_step_ms=2, sim_step_us_per_seq=0)
    settings: dict[str, Any] = {**KEYS, "storage_url": str(module_stack.folder / "files")}
    return module_stack.gateway(**settings)


@pytest.fixture(scope="module")
def api(gateway: Process) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, headers=OPERATOR, timeout=60) as client:
        yield client


def routes(api: httpx.Client) -> list[tuple[str, str]]:
    """Method and path of each described route; a parameter is `none`."""
    described = api.get("/openapi.json").json()["paths"]
    return [
        (method.upper(), re.sub(r"{\w+}", "none", path))
        for path, operations in described.items()
        for method in operations
    ]


def shown(answer: httpx.Response) -> tuple[int, object]:
    """What an answer says, without what is another one each time."""
    text = re.sub(r"(req|job)_\w+", "ID", answer.text)
    error = json.loads(text)["error"] if answer.status_code >= 400 else None
    return answer.status_code, error


def test_a_slash_at_the_end_is_left_out(api: httpx.Client) -> None:
    streams = ("/admin/stream", "/admin/overview/stream")
    asked = [each for each in routes(api) if each[1] not in streams]
    assert len(asked) > 80
    for method, path in asked:
        body: Any = {} if method in ("POST", "PUT") else None
        answers = [api.request(method, each, json=body) for each in (path, f"{path.rstrip('/')}/")]
        if path != "/":
            assert shown(answers[0]) == shown(answers[1]), (method, path)
        assert "location" not in answers[1].headers or answers[1].status_code == 202


def test_a_call_and_a_stream_with_a_slash_at_the_end(api: httpx.Client) -> None:
    assert api.post(f"{CHAT}/", json=chat(max_tokens=2)).json()["usage"]["completion_tokens"] == 2
    stream = api.post(f"{CHAT}/", json=chat(max_tokens=2, stream=True))
    assert stream.text.endswith("data: [DONE]\n\n")
    assert api.head("/v1/models/").status_code == 200
    assert api.get("/v1/models/", headers={"authorization": ""}).status_code == 401
    assert api.get("/admin/pools/", headers=TEAM).json()["error"]["code"] == "missing_scope"


@pytest.mark.parametrize("path", ["//v1/chat/completions", "/v1//chat/completions"])
def test_a_doubled_slash_is_named(gateway: Process, api: httpx.Client, path: str) -> None:
    error = api.post(f"{gateway.url}{path}", json=chat(max_tokens=2)).json()["error"]
    assert error["code"] == "unknown_route"
    assert "`//`" in error["message"]
    plain = api.post(path.replace("//", "/") + "x", json={}).json()["error"]
    assert "`//`" not in plain["message"]


def test_a_doubled_slash_keeps_the_shape_of_anthropics_errors(
    gateway: Process, api: httpx.Client
) -> None:
    answer = api.post(f"{gateway.url}//v1/messages", json={})
    assert (answer.status_code, answer.json()["type"]) == (404, "error")
    assert "`//`" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/docs", "/docs/"])
def test_the_description_loads_its_files_by_relative_links(api: httpx.Client, path: str) -> None:
    page = api.get(path, headers={"x-forwarded-prefix": "/llm"})
    linked = re.findall(r"""(?:src|href)="([^"#]+)"|url: '([^']+)'""", page.text)
    links = [word for words in linked for word in words if word]
    assert len(links) == 4
    for link in links:
        target = urljoin(f"http://proxy/llm{path}", link)
        assert target.startswith("http://proxy/llm/"), link
        assert api.get(target.removeprefix("http://proxy/llm")).status_code == 200


def test_the_description_names_its_server_relative_to_itself(api: httpx.Client) -> None:
    (server,) = api.get("/openapi.json").json()["servers"]
    for base in ("http://proxy/", "https://proxy/llm/"):
        assert urljoin(f"{base}openapi.json", server["url"]) == base


def test_unknown_query_parameters_of_other_apis_are_ignored(api: httpx.Client) -> None:
    asked = [
        (method, path)
        for method, path in routes(api)
        if path.startswith(OF_APIS) and not path.startswith(OURS)
    ]
    assert len(asked) > 40
    for method, path in asked:
        body: Any = {} if method == "POST" else None
        answers = [api.request(method, path, json=body, params=each) for each in ({}, ODD)]
        assert shown(answers[0]) == shown(answers[1]), (method, path)
    answer = api.post(CHAT, json=chat(max_tokens=2), params=ODD)
    assert answer.status_code == 200


def test_the_events_of_a_response_with_an_unknown_query_parameter(api: httpx.Client) -> None:
    body = {"model": "simulated", "input": "x", "stream": True, "max_output_tokens": 2}
    made = api.post("/v1/responses", json=body, params=ODD)
    response = json.loads(made.text.split("data: ")[1].splitlines()[0])["response"]["id"]
    events = [
        api.get(f"/v1/responses/{response}", params={"stream": "true", **odd}) for odd in ({}, ODD)
    ]
    assert events[0].text.startswith("event: response.created")
    assert events[0].text == events[1].text


def test_unknown_query_parameters_of_our_own_routes_are_refused(api: httpx.Client) -> None:
    for path in ("/jobs", "/admin/pools", "/admin/keys", "/v1/usage", "/v1/webhook_endpoints"):
        answer = api.get(path, params={"sort": "up"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "sort"), path

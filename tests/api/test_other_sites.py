"""Pages and applications of other origins that have a key, and CORS for those that are named."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.harness.client import CHAT, chat
from tests.harness.fleet import Stack
from tests.harness.waiting import wait_for

KEY = {"authorization": "Bearer key-of-ann-123456"}
APPS = [
    "null",
    "app://obsidian.md",
    "vscode-file://vscode-app",
    "chrome-extension://abcdefgh",
    "tauri://localhost",
    "https://tauri.localhost",
    "https://other.example",
]
PAGE = "https://app.example"
ALLOWED = "access-control-allow-origin"
ROUTES = [("POST", CHAT), ("POST", "/jobs"), ("DELETE", "/v1/responses/none"), ("GET", "/jobs")]


@pytest.fixture(scope="module")
def stack(module_stack: Stack) -> Stack:
    module_stack.worker(sim_step_ms=2, sim_step_us_per_seq=0)
    return module_stack


@pytest.fixture(scope="module")
def api(stack: Stack) -> Iterator[httpx.Client]:
    """A gateway with keys and no CORS."""
    gateway = stack.gateway(api_keys="ann:key-of-ann-123456")
    with httpx.Client(base_url=gateway.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def with_cors(stack: Stack) -> Iterator[httpx.Client]:
    gateway = stack.gateway(
        api_keys="ann:key-of-ann-123456", cors_origins=f"{PAGE},tauri://localhost"
    )
    with httpx.Client(base_url=gateway.url, timeout=60) as client:
        yield client


def ask(api: httpx.Client, method: str, path: str, headers: dict[str, str]) -> httpx.Response:
    body = {CHAT: chat(max_tokens=2), "/jobs": {"body": chat(max_tokens=2)}}.get(path)
    return api.request(method, path, headers=headers, json=body if method == "POST" else None)


@pytest.mark.parametrize("site", [None, "cross-site", "same-site"])
@pytest.mark.parametrize("origin", APPS)
def test_who_has_a_key_calls_from_anywhere(
    api: httpx.Client, origin: str, site: str | None
) -> None:
    sent = {"origin": origin} | ({"sec-fetch-site": site} if site else {})
    for method, path in ROUTES:
        answer = ask(api, method, path, KEY | sent)
        assert answer.status_code in ((404,) if "none" in path else (200, 202)), answer.text
        assert ALLOWED not in answer.headers
        for wrong in ({}, {"authorization": "Bearer wrong"}):
            refused = ask(api, method, path, wrong | sent)
            assert refused.status_code == 401
            assert refused.json()["error"]["code"] == "invalid_api_key"


def test_without_keys_they_change_nothing(stack: Stack) -> None:
    with httpx.Client(base_url=stack.gateway().url) as api:
        for origin in APPS:
            for method, path in ROUTES[:3]:
                refused = ask(api, method, path, KEY | {"origin": origin})
                assert refused.json()["error"]["code"] == "foreign_site"
            preflight = {"origin": origin, "access-control-request-method": "POST"}
            assert ALLOWED not in api.options(CHAT, headers=preflight).headers


def exposed(answer: httpx.Response) -> set[str]:
    return set(answer.headers["access-control-expose-headers"].split(", "))


def test_a_named_page_reads_answers_streams_and_errors(with_cors: httpx.Client) -> None:
    for origin in (PAGE, "tauri://localhost"):
        page = {"origin": origin, "sec-fetch-site": "cross-site"}
        for stream in (False, True):
            body = chat(max_tokens=2, stream=stream)
            answer = with_cors.post(CHAT, json=body, headers=KEY | page)
            assert answer.status_code == 200
            assert answer.headers.get_list(ALLOWED) == [origin]
            assert answer.headers["vary"] == "origin"
            assert "access-control-allow-credentials" not in answer.headers
            assert {"x-flotilla-job-id", "x-request-id", "retry-after"} <= exposed(answer)
            ours = {name for name in answer.headers if name.startswith("x-flotilla-")}
            assert ours <= exposed(answer)
        for path, key, status in (
            ("/v1/models", KEY, 200),
            ("/v1/models", {}, 401),
            ("/nothing", KEY, 404),
            (CHAT, KEY, 405),
            ("/healthz", {}, 200),
        ):
            answer = with_cors.get(path, headers=key | page)
            assert (answer.status_code, answer.headers[ALLOWED]) == (status, origin)
        invalid = with_cors.post(CHAT, content=b"{", headers=KEY | page)
        assert (invalid.status_code, invalid.headers[ALLOWED]) == (415, origin)


def test_the_headers_of_one_answer_are_not_on_the_next_of_its_connection(
    with_cors: httpx.Client,
) -> None:
    for _ in range(2):
        assert ALLOWED in with_cors.get("/v1/models", headers=KEY | {"origin": PAGE}).headers
        assert ALLOWED not in with_cors.get("/v1/models", headers=KEY).headers


def test_a_preflight_request_needs_no_key(with_cors: httpx.Client) -> None:
    wanted = "authorization,content-type,x-stainless-lang,idempotency-key"
    for method, path in [*ROUTES, ("POST", f"{CHAT}/")]:
        answer = with_cors.options(
            path,
            headers={
                "origin": PAGE,
                "access-control-request-method": method,
                "access-control-request-headers": wanted,
            },
        )
        assert (answer.status_code, answer.content) == (204, b"")
        assert answer.headers[ALLOWED] == PAGE
        assert method in answer.headers["access-control-allow-methods"].split(", ")
        assert answer.headers["access-control-allow-headers"] == wanted
        assert int(answer.headers["access-control-max-age"]) > 0


@pytest.mark.parametrize("origin", ["https://evil.example", "https://app.example.evil", "null"])
def test_another_page_reads_nothing(with_cors: httpx.Client, origin: str) -> None:
    preflight = {"origin": origin, "access-control-request-method": "POST"}
    refused = with_cors.options(CHAT, headers=preflight)
    assert (refused.status_code, ALLOWED in refused.headers) == (401, False)
    answer = with_cors.get("/v1/models", headers=KEY | {"origin": origin})
    assert (answer.status_code, ALLOWED in answer.headers) == (200, False)


def test_all_pages_may_be_allowed(stack: Stack) -> None:
    gateway = stack.gateway(api_keys="ann:key-of-ann-123456", cors_origins="*")
    for origin in APPS:
        answer = httpx.get(f"{gateway.url}/v1/models", headers=KEY | {"origin": origin})
        assert (answer.status_code, answer.headers[ALLOWED]) == (200, "*")


@pytest.mark.parametrize(
    "settings",
    [
        {"cors_origins": PAGE},
        {"cors_origins": "app.example", "api_keys": "ann:key-of-ann-123456"},
        {"cors_origins": f"{PAGE}/", "api_keys": "ann:key-of-ann-123456"},
    ],
)
def test_it_needs_keys_and_origins(stack: Stack, settings: dict[str, str]) -> None:
    gateway = stack.gateway(wait=False, **settings)
    assert wait_for(gateway.popen.poll, "it has ended") == 2
    assert "cors_origins" in gateway.log.read_text().lower()

"""What web pages send, to every route: across sites without asking first, and by DNS rebinding."""

from __future__ import annotations

import json
import re
from functools import cache

import pytest
from starlette.routing import Route
from starlette.types import ASGIApp

from gateway.apis.table import APIS
from gateway.app import create_app
from gateway.http.web_pages import WebPages
from shared.api.endpoints import ENDPOINTS
from shared.job.errors import ForeignSite, UnknownHost
from shared.platform.settings import SettingsError, load_settings
from tests.harness.settings import Settings
from tests.unit.gateway.test_middleware import Headers, ask

HERE = b"127.0.0.1:8000"
EVIL = b"http://evil.example"
SAFE = {"GET", "HEAD", "OPTIONS"}


@cache
def app() -> ASGIApp:
    return create_app(Settings(access_log=False, allowed_hosts=("gateway",)))


def _routes() -> list[tuple[str, str]]:
    """Each method and path of the route table; a parameter is `x`."""
    found = set()
    for route in create_app(Settings()).fastapi.routes:
        assert isinstance(route, Route), route
        path = re.sub(r"\{[^}]*\}", "x", route.path)
        found |= {(method, path) for method in route.methods or ()}
    assert len(found) > 80
    return sorted(found)


ROUTES = _routes()
CHANGING = [(method, path) for method, path in ROUTES if method not in SAFE]


async def code_of(app: ASGIApp, method: str, path: str, headers: Headers) -> str | None:
    status, sent, body = await ask(app, path, headers, method=method)
    assert [name for name, _ in sent].count(b"x-request-id") == 1
    return json.loads(body)["error"]["code"] if status >= 400 else None


@pytest.mark.parametrize(
    "host", [b"evil.example:19000", b"127.0.0.1.evil.example", b"", b"[::1", b"127.0.0.1:80@evil"]
)
async def test_without_keys_no_route_answers_to_a_name_that_a_page_may_have(host: bytes) -> None:
    for method, path in ROUTES:
        same_origin = [(b"host", host), (b"origin", b"http://" + host)]
        assert await code_of(app(), method, path, same_origin) == "unknown_host", path


ACROSS_SITES: list[Headers] = [
    [(b"origin", EVIL), (b"sec-fetch-site", b"cross-site")],
    [(b"origin", EVIL)],
    [(b"sec-fetch-site", b"cross-site")],
    [(b"origin", b"null"), (b"sec-fetch-site", b"cross-site")],
    [(b"origin", b"null")],
    [(b"origin", b"http://[")],
    [(b"origin", b"http://127.0.0.1:3000"), (b"sec-fetch-site", b"same-site")],
    [(b"origin", b"http://127.0.0.1:3000")],
    [(b"origin", b"http://127.0.0.1:8000.evil.example")],
    [(b"origin", b"http://gateway.evil.example")],
    [(b"origin", b"http://evil.example/127.0.0.1:8000")],
]


@pytest.mark.parametrize("sent", ACROSS_SITES)
async def test_no_route_is_changed_by_a_page_of_another_site(sent: Headers) -> None:
    for media_type in (b"text/plain", b"application/json"):
        headers = [(b"host", HERE), *sent, (b"content-type", media_type)]
        for method, path in CHANGING:
            assert await code_of(app(), method, path, headers) == "foreign_site", path


@pytest.mark.parametrize(
    "sent",
    [
        [(b"content-type", b"text/plain;charset=UTF-8")],
        [(b"content-type", b"application/x-www-form-urlencoded"), (b"content-length", b"0")],
        [(b"content-type", b"Multipart/Form-Data; boundary=x"), (b"content-length", b"9")],
        [(b"content-length", b"2")],
        [(b"transfer-encoding", b"chunked")],
    ],
)
async def test_a_body_that_a_page_can_send_without_asking_is_refused_by_every_route(
    sent: Headers,
) -> None:
    read = {*ENDPOINTS, *(re.sub(r"\{\w+\}", "x", form) for api in APIS for form in api.forms)}
    others = [(method, path) for method, path in CHANGING if path not in read]
    assert len(others) > 20  # the endpoints' bodies: test_body.py
    for method, path in others:
        headers = [(b"host", HERE), *sent]
        assert await code_of(app(), method, path, headers) == "unsupported_media_type", path


@pytest.mark.parametrize(
    "sent",
    [
        [],  # curl -X POST; OpenAI's SDKs
        [(b"host", HERE), (b"content-length", b"0")],
        [(b"host", b"localhost"), (b"content-type", b"application/json")],
        [(b"host", b"[::1]:8000"), (b"content-type", b"application/json; charset=utf-8")],
        [(b"host", b"10.0.0.7:8000")],  # a probe, Prometheus
        [(b"host", b"gateway:8000"), (b"content-type", b"application/octet-stream")],  # aiohttp
        [(b"host", b"LOCALHOST:8000"), (b"origin", b"http://localhost:8000")],  # its own page
        [(b"host", HERE), (b"origin", b"null"), (b"sec-fetch-site", b"same-origin")],
        [(b"host", HERE), (b"origin", b"https://proxy"), (b"sec-fetch-site", b"same-origin")],
        [(b"host", HERE), (b"sec-fetch-site", b"none")],  # typed by the user
        [(b"host", HERE), (b"origin", b"https://gateway"), (b"sec-fetch-site", b"cross-site")],
    ],
)
async def test_its_own_page_and_other_clients_are_served(sent: Headers) -> None:
    pages = WebPages(["gateway"], with_keys=False)
    for method in ("GET", "POST", "DELETE"):
        pages.check({"method": method, "headers": sent}, checks_type=True)


async def test_a_page_of_another_site_may_link_here() -> None:
    pages = WebPages([], with_keys=False)
    headers = [(b"host", HERE), (b"sec-fetch-site", b"cross-site")]
    pages.check({"method": "GET", "headers": headers}, checks_type=True)


@pytest.mark.parametrize("host", [b"", b"a.example"])
def test_a_name_that_was_answered_opens_no_other(host: bytes) -> None:
    pages = WebPages([], with_keys=False)
    for known in ([], [(b"host", HERE)]):
        pages.check({"method": "GET", "headers": known}, checks_type=False)
        for _ in range(2):  # a refused one is not remembered
            with pytest.raises(UnknownHost):
                pages.check({"method": "GET", "headers": [(b"host", host)]}, checks_type=False)


async def test_with_keys_any_name_is_answered() -> None:
    pages = WebPages([], with_keys=True)
    for method in ("GET", "POST"):
        pages.check({"method": method, "headers": [(b"host", b"a.example")]}, checks_type=True)


@pytest.mark.parametrize("origin", [b"http://", b"//", b"\xff", b"a:b:c", b"http://[::1", b":"])
def test_odd_origins_are_refused_and_not_an_error(origin: bytes) -> None:
    request = {"method": "POST", "headers": [(b"host", HERE), (b"origin", origin)]}
    with pytest.raises(ForeignSite, match="another site"):
        WebPages([], with_keys=False).check(request, checks_type=True)


def test_allowed_hosts_are_names() -> None:
    assert load_settings(Settings, allowed_hosts="Gateway, fleet.example").allowed_hosts == (
        "gateway",
        "fleet.example",
    )
    for wrong in ("http://gateway", "gateway:8000", "*", "*.example"):
        with pytest.raises(SettingsError, match="no host name"):
            load_settings(Settings, allowed_hosts=wrong)

"""Each route of the application needs the scope that the table says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.routing import BaseRoute

from gateway.app import create_app
from gateway.http.route_scopes import (
    PUBLIC_PATHS,
    ROUTES,
    check_route,
    names_models_later,
    needs_of,
    scopes_of,
)
from shared.job.errors import MissingScope
from shared.tenants.api_key import ApiKey
from shared.tenants.scopes import Scope
from tests.harness.settings import Settings

OPEN = {"/docs/{name}", "/ui/{name}"}
"""Their names are in PUBLIC_PATHS; with others they need a key."""


def application_routes() -> Iterator[tuple[str, str]]:
    """Method and path of each route of the application."""
    routes: list[BaseRoute] = list(create_app(Settings()).fastapi.router.routes)
    while routes:
        route = routes.pop()
        routes += getattr(route, "routes", None) or []
        for method in getattr(route, "methods", None) or ():
            yield method, route.path  # type: ignore[attr-defined]


ALL = sorted(set(application_routes()))


def test_every_route_is_in_the_table() -> None:
    closed = {path for _, path in ALL} - PUBLIC_PATHS - OPEN
    assert {path for path in closed if needs_of(path) is None} == set()


def test_every_row_has_a_route() -> None:
    """But those of an API that was deleted: there they do no harm."""
    paths = [path for _, path in ALL]
    unused = {row for row in ROUTES if not any(f"{path}/".startswith(f"{row}/") for path in paths)}
    assert not unused


def test_which_scope_a_request_needs() -> None:
    for method, path, scope in [
        ("POST", "/v1/chat/completions", Scope.INFER),
        ("GET", "/v1/responses/resp_1", Scope.INFER),
        ("POST", "/predictions/m/1.0", Scope.INFER),
        ("POST", "/v1/messages", Scope.INFER),
        ("POST", "/v1/batches", Scope.JOBS),
        ("POST", "/jobs", Scope.JOBS),
        ("GET", "/jobs", Scope.JOBS),
        ("POST", "/jobs/job_1/retry", Scope.JOBS),
        ("HEAD", "/v1/files/file_1/content", Scope.JOBS),
        ("POST", "/admin/keys", Scope.ADMIN_WRITE),
        ("DELETE", "/admin/keys/key_1", Scope.ADMIN_WRITE),
        ("GET", "/admin/autoscale", None),
        ("GET", "/admin/autoscale/other", None),
        ("GET", "/admin/autoscaler", Scope.ADMIN_READ),
        ("GET", "/admin", Scope.ADMIN_READ),
        ("POST", "/admin/new/route", Scope.ADMIN_WRITE),
        ("GET", "/server_info", Scope.ADMIN_READ),
        ("POST", "/sleep", Scope.ADMIN_WRITE),
        ("GET", "/models/m", None),
        ("HEAD", "/models/m", None),
        ("PUT", "/admin/autoscale/m", Scope.ADMIN_WRITE),
        ("GET", "/v1/models", None),
        ("GET", "/metrics", None),
        ("GET", "/nowhere", None),
        ("GET", "", None),
    ]:
        assert scopes_of(method, path) == ((scope,) if scope else ())


def test_a_key_without_the_scope_is_refused() -> None:
    key = ApiKey("key_1", "team", frozenset({Scope.INFER}))
    check_route(key, "POST", "/v1/completions")
    check_route(key, "GET", "/metrics")
    check_route(key, "GET", "/jobs/job_1/stream")
    with pytest.raises(MissingScope, match="scope jobs; yours has: infer") as refused:
        check_route(key, "GET", "/jobs")
    assert (refused.value.status, refused.value.code) == (403, "missing_scope")


def test_a_key_of_some_models_makes_no_batches() -> None:
    key = ApiKey("key_1", "team", models=("m",))
    assert names_models_later("POST", "/v1/batches")
    with pytest.raises(MissingScope, match="limited to some models"):
        check_route(key, "POST", "/v1/batches")
    check_route(key, "GET", "/v1/batches")
    check_route(key, "POST", "/v1/batches/batch_1/cancel")

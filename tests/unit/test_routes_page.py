"""ROUTES.md is true: it has every route of vLLM, and what it says of each is what the gateway does.

vLLM's routes are read from its source, so no engine and no import of vLLM is needed.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from starlette.types import ASGIApp

from gateway.app import create_app
from gateway.core.call import new_call
from gateway.core.incoming import Incoming
from gateway.http.refused_routes import HOSTING_HEADERS, REFUSED
from shared.api.endpoints import ENDPOINTS
from shared.job.errors import NotSupported
from shared.tenants.api_key import ApiKey
from tests.deletions.deletion import WITH_TESTS
from tests.models.parity_cases import GENERATE
from tests.models.pooling_cases import CLASSIFY, EMBED, SCORES
from tests.settings import Settings
from tests.test_architecture import ROOT
from tests.unit.gateway.test_middleware import ask

PAGE = (ROOT / "shared" / "api" / "ROUTES.md").read_text()
METHODS = {"get", "post", "put", "delete", "websocket"}
OTHER_SERVERS = ("cli/", "launchers/")
"""Of vLLM's source: programs with routes of their own, which `vllm serve` does not have."""

_RESPONSE, _CONVERSATION = "/v1/responses/{response_id}", "/v1/conversations/{id}"
_FILE, _UPLOAD = "/v1/files/{file_id}", "/v1/uploads/{upload_id}"
_BATCH, _WEBHOOK = "/v1/batches/{batch_id}", "/v1/webhook_endpoints/{endpoint_id}"
BY_OPENAIS_SDK = {
    ("POST", "/v1/responses"): "responses.create",
    ("GET", _RESPONSE): "responses.retrieve",
    ("DELETE", _RESPONSE): "responses.delete",
    ("POST", f"{_RESPONSE}/cancel"): "responses.cancel",
    ("GET", f"{_RESPONSE}/input_items"): "responses.input_items.list",
    ("POST", "/v1/conversations"): "conversations.create",
    ("GET", _CONVERSATION): "conversations.retrieve",
    ("POST", _CONVERSATION): "conversations.update",
    ("DELETE", _CONVERSATION): "conversations.delete",
    ("GET", f"{_CONVERSATION}/items"): "conversations.items.list",
    ("POST", f"{_CONVERSATION}/items"): "conversations.items.create",
    ("GET", f"{_CONVERSATION}/items/{{item_id}}"): "conversations.items.retrieve",
    ("DELETE", f"{_CONVERSATION}/items/{{item_id}}"): "conversations.items.delete",
    ("POST", "/v1/files"): "files.create",
    ("GET", "/v1/files"): "files.list",
    ("GET", _FILE): "files.retrieve",
    ("DELETE", _FILE): "files.delete",
    ("GET", f"{_FILE}/content"): "files.content",
    ("POST", "/v1/uploads"): "uploads.create",
    ("POST", f"{_UPLOAD}/parts"): "uploads.parts.create",
    ("POST", f"{_UPLOAD}/complete"): "uploads.complete",
    ("POST", f"{_UPLOAD}/cancel"): "uploads.cancel",
    ("POST", "/v1/batches"): "batches.create",
    ("GET", "/v1/batches"): "batches.list",
    ("GET", _BATCH): "batches.retrieve",
    ("POST", f"{_BATCH}/cancel"): "batches.cancel",
    ("POST", "/v1/webhook_endpoints"): "webhooks.create",
    ("GET", "/v1/webhook_endpoints"): "webhooks.list",
    ("GET", _WEBHOOK): "webhooks.retrieve",
    ("POST", _WEBHOOK): "webhooks.update",
    ("DELETE", _WEBHOOK): "webhooks.delete",
    ("POST", f"{_WEBHOOK}/rotate_secret"): "webhooks.rotate_secret",
    ("POST", f"{_WEBHOOK}/test"): "webhooks.test",
    ("GET", "/v1/webhook_event_types"): "webhooks.event_types.list",
}
"""What the tests of these routes call."""


class Row(NamedTuple):
    method: str
    path: str
    answer: str
    test: str

    @property
    def works(self) -> bool:
        return self.answer.startswith("works")

    @property
    def example(self) -> str:
        """The path with a value for each parameter."""
        return re.sub(r"\{\w+\}", "x", self.path)


ROWS = [
    Row(*cells)
    for cells in re.findall(r"^\| `(\w+) (/\S*)` \| (.*?) \| (.*?) \|$", PAGE, re.MULTILINE)
]
REFUSED_ROWS = [row for row in ROWS if not row.works]
DELETED = {Path(folder).name for folder in WITH_TESTS if not (ROOT / folder).exists()}
"""The APIs that were deleted with their tests."""
SERVED_ROWS = [row for row in ROWS if row.works and Path(row.test).parent.name not in DELETED]


def vllms_routes() -> set[tuple[str, str]]:
    """(method, path) of every route in vLLM's source."""
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "entrypoints"
    found = set()
    for path in folder.rglob("*.py"):
        if path.relative_to(folder).as_posix().startswith(OTHER_SERVERS):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            found |= set(_routes_in(node))
    return found


def _routes_in(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The route that a call such as `router.get("/x")` makes."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
        return
    name, first = node.func.attr, node.args[0]
    if not isinstance(first, ast.Constant) or not str(first.value).startswith("/"):
        return
    if name in METHODS:
        yield name.upper(), first.value
    elif name == "add_api_route":
        methods = next(each.value for each in node.keywords if each.arg == "methods")
        yield from ((method, first.value) for method in ast.literal_eval(methods))


def hosting_routes() -> set[tuple[str, str]]:
    """(method, path) of every route that vLLM's hosting package adds."""
    spec = find_spec("model_hosting_container_standards")
    assert spec is not None
    assert spec.origin is not None
    found = set()
    for path in Path(spec.origin).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "RouteConfig":
                of = {each.arg: ast.unparse(each.value).strip("'") for each in node.keywords}
                found.add((of["method"], of["path"]))
    return found


def test_the_page_has_every_route_of_vllms_hosting_package() -> None:
    routes = hosting_routes()
    assert {("POST", "/invocations"), ("POST", "/adapters")} <= routes
    assert routes - {(row.method, row.path) for row in ROWS} == set()


class Nothing:
    """A gateway of which nothing is used."""

    settings = Settings()


@pytest.mark.parametrize("header", HOSTING_HEADERS)
async def test_headers_that_would_change_the_answer_are_refused(header: bytes) -> None:
    not_reached: Any = None
    scope = {
        "path": "/invocations",
        "headers": [(b"content-type", b"application/json"), (header, b"x")],
    }
    endpoint = ENDPOINTS["/invocations"]
    incoming = Incoming(scope, not_reached, ApiKey("", "tenant"), 0.0, None)
    with pytest.raises(NotSupported) as refused:
        await new_call(Nothing(), incoming, endpoint)  # type: ignore[arg-type]
    assert str(refused.value).endswith(HOSTING_HEADERS[header])
    assert header.decode() in PAGE


def test_the_page_has_every_route_of_vllm() -> None:
    routes = vllms_routes()
    assert len(routes) > 60
    assert routes - {(row.method, row.path) for row in ROWS} == set()


def test_no_cell_is_empty_and_no_call_is_there_twice() -> None:
    lines = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert len(ROWS) == len(lines)
    assert all(row.answer.startswith(("works", "refused: ")) and row.test for row in ROWS)
    calls = [(row.method, row.path, row.answer[:1]) for row in ROWS]
    own = {("GET", "/ping", "w"), ("GET", "/metrics", "w")}  # of vLLM and TorchServe alike
    assert [call for call in calls if calls.count(call) > 1 and call not in own] == []


@pytest.mark.parametrize("row", REFUSED_ROWS, ids=lambda row: f"{row.method} {row.path}")
async def test_a_refused_route_is_answered_with_the_reason(row: Row) -> None:
    if row.method == "WEBSOCKET":  # middleware.Authentication closes it, and says why by GET
        row = row._replace(method="GET")
    status, headers, raw = await ask(_app(), row.example, method=row.method)
    error = json.loads(raw)["error"]
    assert (status, error["code"]) == (501, "not_supported")
    assert (b"x-should-retry", b"false") in headers
    assert f"{row.method} {row.example} is not served: " in error["message"]
    assert error["message"].endswith(row.answer.removeprefix("refused: "))


@cache
def _app() -> ASGIApp:
    return create_app(Settings())


def test_every_refused_route_is_on_the_page() -> None:
    shown = {(row.method, row.path) for row in REFUSED_ROWS}
    for route in REFUSED:
        method, _, path = route.rpartition(" ")
        assert any(
            shown_path.startswith(path) and method in ("", shown_method)
            for shown_method, shown_path in shown
        ), route


@pytest.mark.parametrize("row", SERVED_ROWS, ids=lambda row: f"{row.method} {row.path}")
async def test_a_route_that_works_is_served_and_has_a_test(row: Row) -> None:
    # Without its objects the application fails behind the route; no route is another error.
    status, _, raw = await ask(_app(), row.example, method=row.method)
    code = json.loads(raw)["error"].get("code") if status >= 400 else None
    assert code not in ("unknown_route", "method_not_allowed", "not_supported"), row
    test = ROOT / row.test
    assert test.exists(), f"{row.test} does not exist"
    text = test.read_text()
    if test.name == "test_parity.py":
        text = " ".join(case.path for case in (*GENERATE, *EMBED, *CLASSIFY, *SCORES))
    if call := BY_OPENAIS_SDK.get((row.method, row.path)):
        assert f".{call}(" in text, f"{row.test} does not call {call}"
        return
    parts = [part.rstrip("/") for part in re.split(r"\{\w+\}", row.path)]
    assert all(part in text for part in parts), f"{row.test} does not call {row.path}"


def test_every_endpoint_is_on_the_page() -> None:
    assert {("POST", path) for path in ENDPOINTS} <= {(r.method, r.path) for r in ROWS if r.works}

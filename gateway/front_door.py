"""The gateway's ASGI application: finds the application that a request is for.

Every token of a stream passes an application's `send`, so what streams tokens is a plain ASGI
application in front of FastAPI, which serves all else. The rows come from the APIs
(`gateway/apis/table.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial

from fastapi import FastAPI
from starlette.responses import Response
from starlette.routing import Route, compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.core.context import Gateway
from gateway.core.plain_route import PlainApplication, PlainApplications, PlainRoute
from gateway.http import held_bytes
from gateway.http.cors import Cors, add_headers, preflight_headers
from gateway.http.web_pages import WebPages
from gateway.ops.overview.sampler import Sampler
from shared.job.errors import FlotillaError
from shared.platform import request_span
from shared.platform.metrics.gateway import GatewayMetrics


class FrontDoor:
    """The table of applications by path, and the check of web pages for all of them."""

    def __init__(
        self,
        fastapi: FastAPI,
        routes: Iterable[PlainRoute],
        shared: PlainApplications,
        web_pages: WebPages,
        forms: Iterable[str] = (),
        cors: Cors | None = None,
    ) -> None:
        """`forms`: paths of FastAPI whose bodies are forms (`Api.forms`)."""
        self.fastapi = fastapi
        self._cors = cors
        self._shared = shared
        self._web_pages = web_pages
        self._forms = [compile_path(path)[0].match for path in forms]
        self._by_path: dict[str, tuple[str, PlainApplication]] = {}
        self._others: list[tuple[PlainRoute, PlainApplication]] = []
        for route in routes:
            application = PlainApplication(route, shared)
            if "{" in route.path:
                self._others.append((route, application))
            else:
                self._by_path[route.path] = route.method, application
            # For the 405 that other methods get.
            listed = Route(route.path, application, methods=[route.method])
            listed.methods = {route.method}  # without HEAD: it would last as long as the stream
            fastapi.router.routes.append(listed)

    @property
    def metrics(self) -> GatewayMetrics:
        """The metrics of the process."""
        return self._shared.metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.fastapi(scope, receive, send)
            return
        path: str = scope["path"]
        if path.endswith("/") and path != "/" and not path.endswith("//"):
            scope = {**scope, "path": path[:-1]}
        if self._cors is not None and (headers := self._cors.headers(scope)):
            if preflight := preflight_headers(scope):
                response = Response(status_code=204)
                response.raw_headers = headers + preflight
                await response(scope, receive, send)
                return
            add_headers(send, headers)
        request_span.begin(scope["headers"], partial(self._shared.authenticator.is_operator, scope))
        row = self._by_path.get(scope["path"])
        try:
            self._web_pages.check(scope, checks_type=row is None and not self._takes_form(scope))
        except FlotillaError as error:
            await self._shared.refuse(error, scope, receive, send, time.monotonic())
            return
        application: ASGIApp = self.fastapi
        if row is not None and row[0] == scope["method"]:
            application = row[1]
        else:
            for route, other in self._others:
                if route.is_for(scope):
                    application = other
                    break
        try:
            await application(scope, receive, send)
        finally:
            held_bytes.release(scope)

    def _takes_form(self, scope: Scope) -> bool:
        return scope["method"] == "POST" and any(match(scope["path"]) for match in self._forms)

    def fail_open_streams(self, error: Exception) -> None:
        """End all answers that are not complete with this error."""
        self._shared.gateway.relay.fail_all(error)

    def end_overviews(self) -> None:
        """End the streams of the overview, which last for ever."""
        self._shared.gateway.of(Sampler).end_streams()

    @property
    def format_mismatch(self) -> str:
        """Why this release can't use its Redis; empty if it can (see shared/store/health.py)."""
        gateway: Gateway | None = getattr(self._shared, "gateway", None)
        return gateway.health.format if gateway else ""

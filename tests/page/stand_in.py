"""A gateway's stand-in: the real page, with made-up answers of the routes that it calls.

For what a fleet shows only by luck: a good day, a bad day, figures of every size. On a terminal:

    python -m tests.page.stand_in --scene incident --port 8123
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.harness.page import page_files
from tests.harness.servers import free_port
from tests.harness.waiting import wait_for
from tests.page import jobs as made_up
from tests.page import sample_keys
from tests.page.overviews import SCENES, Overview, autoscale, quiet
from tests.page.sample_batches import batches
from tests.page.sample_webhooks import deliveries, webhooks

_POLL_S = 0.02


class StandIn:
    """Serves until its `with` block ends. `show` changes what viewers get, at once."""

    def __init__(self, port: int = 0, step_s: float = 1.0) -> None:
        """`step_s`: how often the stream repeats an overview."""
        port = port or free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.calls: list[tuple[str, str, Any]] = []
        """Method, path and JSON body of the calls that change something."""
        self.shown = 0
        """How many overviews the stream has sent."""
        self._step_s = step_s
        self._overview = quiet()
        self._version = 0
        config = uvicorn.Config(
            self._app(),
            port=port,
            log_level="warning",
            timeout_graceful_shutdown=1,
            lifespan="off",
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def __enter__(self) -> StandIn:
        self._thread.start()
        wait_for(lambda: self._server.started, "the stand-in serves")
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(10)

    def reset(self) -> None:
        """Show a good day, and forget the calls."""
        self.calls.clear()
        self.show(quiet())

    def show(self, overview: Overview) -> None:
        """Send this overview to all viewers, now and from now on."""
        self._overview = overview
        self._version += 1

    def wait_until_shown(self) -> None:
        """Wait until a viewer has been sent what is shown now."""
        before = self.shown
        wait_for(lambda: self.shown > before, "a viewer got the overview")

    def _app(self) -> FastAPI:
        app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        app.include_router(page_files)
        app.router.routes.extend(
            [
                Route("/admin/overview", self._one),
                Route("/admin/stream", self._stream),
                Route("/admin/autoscale", _json(autoscale)),
                Route("/admin/tenants", _list(sample_keys.tenants)),
                Route("/admin/keys", _list(sample_keys.keys)),
                Route("/admin/audit", _list(sample_keys.changes)),
                Route("/admin/usage", _usage),
                Route("/v1/models", _list(_models)),
                Route("/v1/batches", _list(batches)),
                Route("/v1/webhook_endpoints", _list(webhooks)),
                Route("/v1/webhook_endpoints/{id}/deliveries", _deliveries),
                Route("/jobs", _list(made_up.jobs)),
                *(
                    route
                    for start in ("/jobs", "/admin/jobs")
                    for route in (
                        Route(f"{start}/{{job_id}}", _job),
                        Route(f"{start}/{{job_id}}/timeline", _about(made_up.timeline)),
                        Route(f"{start}/{{job_id}}/why", _about(made_up.why)),
                        Route(f"{start}/{{job_id}}/request", _about(made_up.request)),
                    )
                ),
                Route("/{path:path}", self._change, methods=["POST", "PUT", "DELETE"]),
            ]
        )
        return app

    async def _one(self, _: Request) -> Response:
        return JSONResponse(self._overview)

    async def _stream(self, _: Request) -> Response:
        return StreamingResponse(
            self._events(), media_type="text/event-stream", headers={"cache-control": "no-store"}
        )

    async def _events(self) -> AsyncIterator[str]:
        loop = asyncio.get_running_loop()
        yield "retry: 1000\n"
        while not self._server.should_exit:
            version, until = self._version, loop.time() + self._step_s
            yield f"event: overview\ndata: {json.dumps(self._overview)}\n\n"
            self.shown += 1
            while self._version == version and loop.time() < until:  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)  # `show` is called in another thread

    async def _change(self, request: Request) -> Response:
        body = await request.body()
        self.calls.append((request.method, request.url.path, json.loads(body) if body else None))
        if request.method == "POST" and request.url.path.startswith("/admin/keys"):
            made = sample_keys.key(sample_keys.CI, "ci")
            return JSONResponse(made | {"secret": sample_keys.SECRET})
        matched = {"matched": 3, "done": 3, "ids": [made_up.WAITING]}
        return JSONResponse(matched | {"object": "list", "data": []})


def _json(make: Any) -> Any:
    async def answer(_: Request) -> Response:
        return JSONResponse(make())

    return answer


def _list(make: Any) -> Any:
    def whole() -> dict[str, Any]:
        return {"object": "list", "data": make(), "has_more": False, "next_cursor": None}

    return _json(whole)


def _about(make: Any) -> Any:
    async def answer(request: Request) -> Response:
        return JSONResponse(make(request.path_params["job_id"]))

    return answer


async def _deliveries(request: Request) -> Response:
    return JSONResponse({"object": "list", "data": deliveries(request.path_params["id"])})


async def _usage(request: Request) -> Response:
    return JSONResponse(sample_keys.usage(request.query_params["by"]))


async def _job(request: Request) -> Response:
    job_id = request.path_params["job_id"]
    found = [each for each in made_up.jobs() if each["id"] == job_id]
    if found:
        return JSONResponse(found[0])
    error = {"message": f"There is no job {job_id!r}.", "type": "not_found", "code": "not_found"}
    return JSONResponse({"error": error}, 404)


def _models() -> list[dict[str, Any]]:
    ready = {"ready": True, "workers": 4}
    return [{"id": name, "object": "model", "flotilla": ready} for name in ("qwen3-8b", "demo")]


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scene", choices=SCENES, default="quiet")
    parser.add_argument("--port", type=int, default=8123)
    arguments = parser.parse_args()
    with StandIn(arguments.port) as stand_in:
        stand_in.show(SCENES[arguments.scene]())
        print(f"{stand_in.url} shows {arguments.scene}; Ctrl-C ends it")
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    _main()

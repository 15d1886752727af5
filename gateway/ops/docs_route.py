"""Swagger UI for the API's description, without files from other hosts.

Its files come with the package fastapi-offline. They and the description need no API key: a browser
could not send one, and they contain nothing secret.
"""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import Response

from shared.job.errors import UnknownRoute

router = APIRouter(include_in_schema=False)

_ASSETS = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon.png": "image/png",
}


@router.get("/docs")
async def docs(request: Request) -> Response:
    """Swagger UI; `Authorize` takes an API key. Its links work below the path of a proxy too."""
    below = request.scope.get("raw_path", b"").endswith(b"/")
    folder = "" if below else "docs/"
    return get_swagger_ui_html(
        openapi_url="../openapi.json" if below else "openapi.json",
        title="Flotilla",
        swagger_js_url=f"{folder}swagger-ui-bundle.js",
        swagger_css_url=f"{folder}swagger-ui.css",
        swagger_favicon_url=f"{folder}favicon.png",
        swagger_ui_parameters={"validatorUrl": None},  # would be asked on another host
    )


@router.get("/docs/{name}")
async def asset(name: str) -> Response:
    """A file of Swagger UI."""
    if name not in _ASSETS:
        raise UnknownRoute(f"This server has no route GET /docs/{name[:100]}.")
    content = (files("fastapi_offline") / "static" / name).read_bytes()
    return Response(content, media_type=_ASSETS[name], headers={"cache-control": "max-age=86400"})

"""The page at `/`: static files. Its data come from the other routes, with the user's key."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.http.page_files import PAGE_FILES
from shared.job.errors import UnknownRoute

router = APIRouter(include_in_schema=False)


@router.get("/")
@router.get("/ui/{name}")
async def page(request: Request) -> Response:
    """A file of the page; 304 if the browser has it already."""
    path = request.scope["path"]
    file = PAGE_FILES.get(path)
    if file is None:
        raise UnknownRoute(f"This server has no route GET {path[:100]}.")
    if request.headers.get("if-none-match") == file.headers["etag"]:
        return Response(status_code=304, headers=file.headers)
    return Response(file.content, headers=file.headers)

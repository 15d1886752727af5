"""The overview of the fleet, once or as a stream: what the page and `flotilla status` show."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from fastapi import APIRouter
from starlette.responses import Response, StreamingResponse

from gateway.core.context import Gateway, GatewayDep
from gateway.description.schema import errors_in, shows
from gateway.http import server_events as sse
from gateway.http.query import known_only
from gateway.ops.overview.models import FleetOverview
from gateway.ops.overview.sampler import Sampler
from shared.job.errors import OverviewFailed

router = APIRouter(prefix="/admin", tags=["operators"], dependencies=[known_only])

_HEADERS = {name.decode(): value.decode() for name, value in sse.HEADERS}
_RETRY = b"retry: 1000\n"


@router.get("/overview", response_model=FleetOverview, responses=errors_in(OverviewFailed))
async def get_overview(gateway: GatewayDep) -> Response:
    """The state of the fleet: verdict, rates, pools, workers.

    Rates need two readings: they are null in the first answer, and there if you ask again within
    10 seconds.
    """
    return Response(await gateway.of(Sampler).latest(), media_type="application/json")


@router.get("/stream", response_class=StreamingResponse, openapi_extra=shows("", events=True))
async def stream_overview(gateway: GatewayDep) -> Response:
    """The overview as server-sent events, one `overview` each second."""
    return StreamingResponse(_events(gateway), headers=_HEADERS)


async def _events(gateway: Gateway) -> AsyncIterator[bytes]:
    head = _RETRY
    async with aclosing(gateway.of(Sampler).follow()) as overviews:
        async for data in overviews:
            yield head + sse.raw_event("overview", data)
            head = b""

"""An API as its folder registers it in `gateway/apis/table.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fastapi import APIRouter

from gateway.core.context import Gateway
from gateway.core.plain_route import PlainRoute
from gateway.description.schema import Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One API: its routes, and the objects behind them."""

    routers: tuple[APIRouter, ...] = ()
    """Those that FastAPI serves."""
    plain: tuple[PlainRoute, ...] = ()
    """Routes whose answers may be streams of tokens."""
    forms: tuple[str, ...] = ()
    """Paths of `routers` whose bodies are forms; what reads them checks their content type."""
    schemas: Mapping[str, Schema] = field(default_factory=dict)
    """The bodies that are passed on unchanged, by the names that `plain` refers to."""
    start: Callable[[Gateway], None] | None = None
    """Makes the API's own objects and adds them to the gateway's, when the process starts."""

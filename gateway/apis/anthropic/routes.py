"""Anthropic's messages."""

from __future__ import annotations

from gateway.apis.anthropic.message_schemas import MESSAGE_SCHEMAS
from gateway.description.api import Api
from gateway.description.endpoint_route import endpoint_routes

API = Api(
    plain=endpoint_routes(
        "/v1/messages",
        "/v1/messages/count_tokens",
    ),
    schemas=MESSAGE_SCHEMAS,
)

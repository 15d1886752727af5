"""OpenAI's transcriptions and translations."""

from __future__ import annotations

from gateway.apis.audio.audio_schemas import AUDIO_SCHEMAS
from gateway.description.api import Api
from gateway.description.endpoint_route import endpoint_routes

API = Api(
    plain=endpoint_routes(
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
    ),
    schemas=AUDIO_SCHEMAS,
)

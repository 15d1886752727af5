"""Embeddings, classes, scores and other outputs of pooling models."""

from __future__ import annotations

from gateway.apis.pooling.pooling_schemas import POOLING_SCHEMAS
from gateway.description.api import Api
from gateway.description.endpoint_route import endpoint_routes

API = Api(
    plain=endpoint_routes(
        "/v1/embeddings",
        "/v2/embed",
        "/pooling",
        "/classify",
        "/score",
        "/v1/score",
        "/rerank",
        "/v1/rerank",
        "/v2/rerank",
    ),
    schemas=POOLING_SCHEMAS,
)

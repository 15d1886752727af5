"""OpenAI's chat, completions and models; and what vLLM has for any model."""

from __future__ import annotations

from gateway.apis.openai import model_routes
from gateway.apis.openai.chat_schemas import CHAT_SCHEMAS
from gateway.description.api import Api
from gateway.description.endpoint_route import endpoint_routes

API = Api(
    routers=(model_routes.router,),
    plain=endpoint_routes(
        "/v1/chat/completions",
        "/v1/chat/completions/batch",
        "/v1/completions",
        "/tokenize",
        "/detokenize",
        "/invocations",
        "/generative_scoring",
        "/v1/systemone",
    ),
    schemas=CHAT_SCHEMAS,
)

"""TorchServe's `/predictions/...`: a request that is the call of an endpoint in another shape.

prediction.py translates such a body.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from gateway.apis.torchserve.prediction import (
    endpoint_fields,
    model_name,
    prediction_in,
    torchserve_answer,
)
from gateway.core.answer_call import answer_call
from gateway.core.context import Gateway
from gateway.core.incoming import Answer, Incoming, WrappedAnswer
from gateway.core.new_call import Wrapped
from gateway.core.plain_route import PlainRoute
from gateway.description.endpoint_route import ANSWER_ERRORS, CALL_ERRORS, CALL_HEADERS
from gateway.description.schema import TEXT, errors_in, ref


async def predict(gateway: Gateway, incoming: Incoming) -> Answer:
    """The answer to a prediction. Raises UnknownRoute, and as `answer_call`."""
    prediction = prediction_in(incoming.scope["path"])
    model = model_name(prediction.model, gateway.fleet.models)

    def call_in(raw: bytes, fields: dict[str, Any]) -> Wrapped:
        given = endpoint_fields(prediction, fields, model)
        return Wrapped(prediction.endpoint, given, json.dumps(given).encode())

    answer = await answer_call(gateway, incoming, call_in)
    return PredictionAnswer(answer) if prediction.plain else answer


def is_prediction(scope: Scope) -> bool:
    """Not the list of models, which is below the same path."""
    path: str = scope["path"]
    return not path.endswith("/v1/models")


class PredictionAnswer(WrappedAnswer):
    """The answer of /v1/completions in TorchServe's shape; errors as they are."""

    __slots__ = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        await super().__call__(scope, receive, torchserve_send(send))


def torchserve_send(send: Send) -> Send:
    """A `send` that passes the answer of /v1/completions on as TorchServe's; errors as they are."""
    start: Message = {}
    body = bytearray()

    async def send_torchserves(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start":
            start = message
            return
        body.extend(message.get("body", b""))
        if message.get("more_body"):
            return
        answer = torchserve_answer(bytes(body)) if start["status"] == 200 else bytes(body)
        headers = [each for each in start["headers"] if each[0] != b"content-length"]
        length = (b"content-length", str(len(answer)).encode())
        await send({**start, "headers": [*headers, length]})
        await send({"type": "http.response.body", "body": answer, "more_body": False})

    return send_torchserves


PREDICTIONS = PlainRoute(
    method="POST",
    path="/predictions/{model:path}",
    begin=predict,
    applies=is_prediction,
    description={
        "tags": ["TorchServe"],
        "summary": "TorchServe's prediction: a prompt and sampling parameters",
        "description": "`model` may have a version behind it: `name/version`. With the path of an "
        "endpoint, as in `name/v1/completions`, it is a call of that endpoint.",
        "parameters": [
            {"name": "model", "in": "path", "required": True, "schema": TEXT},
            *CALL_HEADERS,
        ],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": ref("PredictionRequest")}},
        },
        "responses": {
            "200": {
                "description": "Successful Response",
                "content": {"application/json": {"schema": ref("Prediction")}},
            },
            **errors_in(*CALL_ERRORS, *ANSWER_ERRORS),
        },
    },
)

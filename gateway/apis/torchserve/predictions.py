"""TorchServe's `/predictions/...`: the call of an endpoint, whose model the path names."""

from __future__ import annotations

import json
from typing import Any

from starlette.types import Scope

from gateway.apis.torchserve.prediction import model_name, prediction_in
from gateway.core.answer import answer_call
from gateway.core.context import Gateway
from gateway.core.incoming import Answer, Incoming
from gateway.core.new_call import Wrapped
from gateway.core.plain_route import PlainRoute
from gateway.description.endpoint_route import ANSWER_ERRORS, CALL_ERRORS, CALL_HEADERS
from gateway.description.schema import ANYTHING, TEXT, errors_in


async def predict(gateway: Gateway, incoming: Incoming) -> Answer:
    """The answer to a prediction. Raises UnknownRoute, and as `answer_call`."""
    prediction = prediction_in(incoming.scope["path"])
    model = model_name(prediction.model, gateway.fleet.models)

    def call_in(raw: bytes, fields: dict[str, Any]) -> Wrapped:
        given = {**fields, "model": model}
        return Wrapped(prediction.endpoint, given, json.dumps(given).encode())

    return await answer_call(gateway, incoming, call_in)


def is_prediction(scope: Scope) -> bool:
    """Not the list of models, which is below the same path."""
    path: str = scope["path"]
    return not path.endswith("/v1/models")


PREDICTIONS = PlainRoute(
    method="POST",
    path="/predictions/{model:path}",
    begin=predict,
    applies=is_prediction,
    description={
        "tags": ["TorchServe"],
        "summary": "A call of an endpoint, whose model the path names",
        "description": "`model` is a model, perhaps its version, and the path of an endpoint: "
        "`name/version/v1/completions`.",
        "parameters": [
            {"name": "model", "in": "path", "required": True, "schema": TEXT},
            *CALL_HEADERS,
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": ANYTHING}}},
        "responses": {
            "200": {
                "description": "Successful Response",
                "content": {"application/json": {"schema": ANYTHING}},
            },
            **errors_in(*CALL_ERRORS, *ANSWER_ERRORS),
        },
    },
)

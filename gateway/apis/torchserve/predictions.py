"""TorchServe's `/predictions/...`: a request becomes one of an endpoint before it is submitted.

Called by routes/inference.py. What such a body means is decided in jobs/prediction.py.
"""

from __future__ import annotations

import json

from starlette.types import Message, Receive, Scope, Send

from gateway.apis.context import Gateway
from gateway.apis.torchserve.prediction import (
    PREFIX,
    endpoint_fields,
    model_name,
    prediction_in,
    torchserve_answer,
)
from gateway.http.body import Limits, parse_json, read_body
from shared.api.endpoint import BodyKind, Endpoint


def is_prediction(scope: Scope) -> bool:
    """Whether a request is for `endpoint_request`; a list of models is not."""
    path: str = scope.get("path", "")
    return path.startswith(PREFIX) and scope["method"] == "POST" and not path.endswith("/v1/models")


async def endpoint_request(
    gateway: Gateway, scope: Scope, receive: Receive, send: Send
) -> tuple[Endpoint, Receive, Send]:
    """The endpoint that answers a prediction, a `receive` with the body that it takes, and a
    `send` for its answer.

    Raises UnknownRoute, BadRequest, BodyTooLarge, BodyTimeout, UnsupportedMediaType.
    """
    settings, prediction = gateway.settings, prediction_in(scope["path"])
    raw = await read_body(
        scope, receive, BodyKind.JSON, settings.max_body_bytes, settings.body_timeout_s
    )
    model = model_name(prediction.model, gateway.fleet.models)
    body = await parse_json(
        raw,
        Limits(settings.max_body_values, settings.max_body_objects),
        lambda fields: json.dumps(endpoint_fields(prediction, fields, model)).encode(),
    )
    message: Message | None = {"type": "http.request", "body": body, "more_body": False}

    async def receive_endpoint_body() -> Message:
        nonlocal message
        given, message = message, None
        return given or await receive()

    plain = prediction.plain
    return prediction.endpoint, receive_endpoint_body, torchserve_send(send) if plain else send


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

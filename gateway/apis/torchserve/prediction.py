"""TorchServe's inference calls, `/predictions/<model>[/<version>][/v1/...]`, as calls of endpoints.

The model of the path answers: `model` of the body is ignored, as by TorchServe. A plain
`/predictions/<model>` has the body of TorchServe's vLLM handler, a prompt and
sampling parameters, and is answered with `text` and `tokens`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import msgspec

from gateway.http.wrong_fields import sent
from shared.api.endpoint import BodyKind, Endpoint
from shared.api.endpoints import ENDPOINTS
from shared.job.errors import BadRequest, UnknownRoute

PREFIX = "/predictions/"
FIRST_VERSION = "1.0"
"""The version of a model that has no versions."""

_COMPLETIONS = ENDPOINTS["/v1/completions"]
_NOT_VLLMS = {"max_new_tokens", "lora_adapter", "lora_name"}
_NOT_SHOWN = {"n", "logprobs", "prompt_logprobs", "logprob_token_ids"}
"""TorchServe's answers have no place for what these fields add, so vLLM does not get them."""
_PATHS = sorted(
    (path for path, row in ENDPOINTS.items() if row.body is BodyKind.JSON), key=len, reverse=True
)


class Prediction(NamedTuple):
    """The model and the endpoint that a path below /predictions names."""

    model: str
    """The model and perhaps its version, as in the path."""
    endpoint: Endpoint
    plain: bool
    """The body and the answer are TorchServe's."""


def prediction_in(path: str) -> Prediction:
    """The prediction of a POST to a path below `PREFIX`. Raises UnknownRoute."""
    rest = path.removeprefix(PREFIX).rstrip("/")
    for endpoint_path in _PATHS:
        model = rest.removesuffix(endpoint_path)
        if model and model != rest:
            return Prediction(model, ENDPOINTS[endpoint_path], plain=False)
    if "/v1/" in rest or not rest:
        raise UnknownRoute(
            f"This server has no route POST {path[:200]}; behind /predictions/<model>/<version> "
            f"it has: {', '.join(sorted(_PATHS))}."
        )
    return Prediction(rest, _COMPLETIONS, plain=True)


def model_name(model: str, known: Collection[str]) -> str:
    """The name of a path's model for the fleet: `name`, or `name:version`.

    `known`: the names of the fleet's models. A name may have slashes.
    """
    name, _, version = model.rpartition("/")
    if model in known or not name:
        return model
    versioned = f"{name}:{version}"
    if versioned not in known and name in known and version == FIRST_VERSION:
        return name
    return versioned


def endpoint_fields(
    prediction: Prediction, fields: Mapping[str, Any], model: str
) -> dict[str, Any]:
    """The fields of the endpoint's body for those of a prediction. Raises BadRequest."""
    if not prediction.plain:
        return {**fields, "model": model}
    if not isinstance(fields.get("prompt"), str):
        raise BadRequest(
            f"`prompt` must be a text, not {sent(fields.get('prompt'))}. For the body of another "
            "route add its path, as in "
            "/predictions/<model>/v1/chat/completions.",
            "prompt",
        )
    if fields.get("stream"):
        raise BadRequest(
            "This route answers in one piece; stream with /predictions/<model>/v1/completions.",
            "stream",
        )
    adapter = fields.get("lora_adapter") or fields.get("lora_name")
    if adapter is not None and not isinstance(adapter, str):
        raise BadRequest("`lora_adapter` must be the name of an adapter.", "lora_adapter")
    left_out = _NOT_VLLMS | _NOT_SHOWN
    passed_on = {name: value for name, value in fields.items() if name not in left_out}
    if "max_new_tokens" in fields:
        passed_on.setdefault("max_tokens", fields["max_new_tokens"])
    return passed_on | {"model": adapter or model, "stream": False, "return_token_ids": True}


class _Choice(msgspec.Struct):
    text: msgspec.Raw
    token_ids: msgspec.Raw = msgspec.Raw(b"null")


class _Completion(msgspec.Struct):
    choices: list[_Choice]


_decode_completion = msgspec.json.Decoder(_Completion).decode


def torchserve_answer(completion: bytes) -> bytes:
    """TorchServe's answer to a plain prediction, from that of /v1/completions.

    Text and tokens are passed on as bytes: there may be as many as the model's context has.
    """
    choice = _decode_completion(completion).choices[0]
    tokens = bytes(choice.token_ids)
    return b'{"text": %b, "tokens": %b}' % (choice.text, b"[]" if tokens == b"null" else tokens)

"""TorchServe's inference calls, `/predictions/<model>[/<version>]/v1/...`, as calls of endpoints.

The model of the path answers: `model` of the body is ignored, as by TorchServe.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from shared.api.endpoint import BodyKind, Endpoint
from shared.api.endpoints import ENDPOINTS
from shared.job.errors import UnknownRoute

PREFIX = "/predictions/"
FIRST_VERSION = "1.0"
"""The version of a model that has no versions."""

_PATHS = sorted(
    (path for path, row in ENDPOINTS.items() if row.body is BodyKind.JSON), key=len, reverse=True
)


class Prediction(NamedTuple):
    """The model and the endpoint that a path below /predictions names."""

    model: str
    """The model and perhaps its version, as in the path."""
    endpoint: Endpoint


def prediction_in(path: str) -> Prediction:
    """The prediction of a POST to a path below `PREFIX`. Raises UnknownRoute."""
    rest = path.removeprefix(PREFIX)
    for endpoint_path in _PATHS:
        model = rest.removesuffix(endpoint_path)
        if model and model != rest:
            return Prediction(model, ENDPOINTS[endpoint_path])
    raise UnknownRoute(
        f"This server has no route POST {path[:200]}; behind /predictions/<model>/<version> "
        f"it has: {', '.join(sorted(_PATHS))}."
    )


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

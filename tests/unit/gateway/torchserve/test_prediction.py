"""What a path of TorchServe's predictions means."""

from __future__ import annotations

import pytest

from gateway.apis.torchserve.prediction import model_name, prediction_in
from shared.job.errors import UnknownRoute

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@pytest.mark.parametrize(
    ("rest", "model", "endpoint"),
    [
        ("m/v1/completions", "m", COMPLETIONS),
        ("m/v1/completions/", "m", COMPLETIONS),
        ("m/1.0/v1/chat/completions", "m/1.0", CHAT),
        ("org/m/v1/completions", "org/m", COMPLETIONS),
    ],
)
def test_a_path_names_model_and_endpoint(rest: str, model: str, endpoint: str) -> None:
    found = prediction_in(f"/predictions/{rest}")
    assert (found.model, found.endpoint.path) == (model, endpoint)


@pytest.mark.parametrize("rest", ["", "/", "m", "m/2.0", "m/v1/nothing"])
def test_another_path_is_an_unknown_route(rest: str) -> None:
    with pytest.raises(UnknownRoute, match="v1/completions"):
        prediction_in(f"/predictions/{rest}")


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("m", "m"),
        ("org/m", "org/m"),
        ("m/1.0", "m"),
        ("org/m/1.0", "org/m"),
        ("m/2.0", "m:2.0"),
        ("v/1.0", "v:1.0"),
        ("v/2.0", "v:2.0"),
        ("new", "new"),
        ("new/1.0", "new:1.0"),
    ],
)
def test_a_version_is_a_part_of_the_name(model: str, name: str) -> None:
    assert model_name(model, {"m", "org/m", "v", "v:1.0", "v:2.0"}) == name

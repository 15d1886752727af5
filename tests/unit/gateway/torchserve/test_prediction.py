"""What a path and a body of TorchServe's predictions mean."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.apis.torchserve.prediction import (
    endpoint_fields,
    model_name,
    prediction_in,
    torchserve_answer,
)
from shared.job.errors import BadRequest, UnknownRoute

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@pytest.mark.parametrize(
    ("rest", "model", "endpoint", "plain"),
    [
        ("m", "m", COMPLETIONS, True),
        ("m/", "m", COMPLETIONS, True),
        ("m/2.0", "m/2.0", COMPLETIONS, True),
        ("org/m/2.0", "org/m/2.0", COMPLETIONS, True),
        ("m/v1/completions", "m", COMPLETIONS, False),
        ("m/1.0/v1/chat/completions", "m/1.0", CHAT, False),
        ("org/m/v1/completions", "org/m", COMPLETIONS, False),
    ],
)
def test_a_path_names_model_and_endpoint(rest: str, model: str, endpoint: str, plain: bool) -> None:
    found = prediction_in(f"/predictions/{rest}")
    assert (found.model, found.endpoint.path, found.plain) == (model, endpoint, plain)


@pytest.mark.parametrize("rest", ["", "/", "m/v1/nothing"])
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


def plain(fields: dict[str, Any]) -> dict[str, Any]:
    return endpoint_fields(prediction_in("/predictions/m"), fields, "m")


def test_a_plain_body_becomes_a_completion() -> None:
    fields = plain({"prompt": "x", "max_new_tokens": 5, "temperature": 0, "model": "other"})
    assert fields == {
        "prompt": "x",
        "max_tokens": 5,
        "temperature": 0,
        "model": "m",
        "stream": False,
        "return_token_ids": True,
    }
    assert plain({"prompt": "x", "max_new_tokens": 5, "max_tokens": 7})["max_tokens"] == 7
    assert plain({"prompt": "x", "lora_adapter": "ad"})["model"] == "ad"


@pytest.mark.parametrize(
    "fields",
    [{}, {"prompt": ["x"]}, {"prompt": "x", "stream": True}, {"prompt": "x", "lora_adapter": 7}],
)
def test_a_wrong_plain_body_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        plain(fields)


def test_the_answer_of_the_first_choice() -> None:
    completion = b'{"choices": [{"text": "\xc3\xa9", "token_ids": [5, 6]}, {"text": "b"}]}'
    assert torchserve_answer(completion) == '{"text": "é", "tokens": [5, 6]}'.encode()
    for tokens in (b"", b', "token_ids": null'):
        without = b'{"choices": [{"text": "a"%b}]}' % tokens
        assert torchserve_answer(without) == b'{"text": "a", "tokens": []}'


def test_what_no_answer_shows_is_not_made() -> None:
    """Else the answer to a small request may have tens of megabytes, of which two fields remain."""
    asked = {"prompt": "x", "n": 64, "logprobs": 20, "prompt_logprobs": 20}
    assert plain(asked) == plain({"prompt": "x"})

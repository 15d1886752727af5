"""Ids and options of responses."""

from __future__ import annotations

import json

import pytest

from shared.job.job import new_job_id
from shared.job.responses import ResponseOptions, job_id_of, response_id


def test_a_response_has_the_digits_of_its_job() -> None:
    job_id = new_job_id(4)
    assert response_id(job_id) == "resp_" + job_id[4:]
    assert job_id_of(response_id(job_id)) == job_id


@pytest.mark.parametrize("other", ["", "resp_", "job_000" + "0" * 24, "resp_x", "resp_" + "0" * 26])
def test_other_ids_are_of_no_job(other: str) -> None:
    assert job_id_of(other) is None


@pytest.mark.parametrize(
    "options",
    [
        ResponseOptions(),
        ResponseOptions(True, True, "resp_1", "", 17, 3, 4),
        ResponseOptions(store=False, conversation="conv_1"),
    ],
)
def test_options_are_read_from_the_beginning_of_a_body(options: ResponseOptions) -> None:
    body = options.prefix() + b'"input":"' + b"x" * 5000 + b'"}'
    assert ResponseOptions.of_body(body) == options
    assert json.loads(body)["input"].startswith("x")


@pytest.mark.parametrize("body", [b"", b"{}", b'{"flotilla":{"response":{"x":1}},"a":1}'])
def test_other_bodies_have_the_defaults(body: bytes) -> None:
    assert ResponseOptions.of_body(body) == ResponseOptions()


def test_only_what_was_asked_is_shown() -> None:
    assert ResponseOptions().shown() == {}
    options = ResponseOptions(True, True, "resp_1", "conv_1", 17)
    assert options.shown() == {
        "background": True,
        "created_at": 17,
        "previous_response_id": "resp_1",
        "conversation": {"id": "conv_1"},
    }

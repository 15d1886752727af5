"""Routes of OpenAI's API that are refused with a reason."""

from __future__ import annotations

import openai
import pytest

from tests.harness.client import http
from tests.harness.fleet import Stack


def test_the_sdk_shows_why_a_route_is_refused_and_does_not_retry(stack: Stack) -> None:
    gateway = stack.gateway()
    refused = http.get(f"{gateway.url}/v1/fine_tuning/jobs/job-1")
    assert (refused.status_code, refused.json()["error"]["code"]) == (501, "not_supported")
    assert refused.headers["x-should-retry"] == "false"
    with (
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="any") as client,
        pytest.raises(openai.InternalServerError, match="vLLM has no such model or store"),
    ):
        client.fine_tuning.jobs.list()
